// For sm_90a only: scripts/build_cuda.sh leaves *_wgmma.cu out elsewhere.
#include "kernels/cuda/gemm_wgmma.cuh"
#include "kernels/cuda/instance_lists.h"

namespace baton::cuda {
BATON_WGMMA_INSTANCES(template)
}  // namespace baton::cuda
