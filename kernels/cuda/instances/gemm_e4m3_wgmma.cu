// For sm_90a only: scripts/build_cuda.sh leaves *_wgmma.cu out elsewhere.
#include "kernels/cuda/instances/instance_lists.h"
#include "kernels/cuda/linear/gemm_e4m3_wgmma.cuh"

namespace baton::cuda {
BATON_E4M3_WGMMA_INSTANCES(template)
}  // namespace baton::cuda
