// For sm_90a only: scripts/build_cuda.sh leaves *_wgmma.cu out elsewhere.
#include "kernels/cuda/instances/instance_lists.h"
#include "kernels/cuda/linear/gemm_wgmma.cuh"
#include "kernels/cuda/linear/gemm_wgmma_narrow.cuh"

namespace baton::cuda {
BATON_WGMMA_INSTANCES(template)
}  // namespace baton::cuda
