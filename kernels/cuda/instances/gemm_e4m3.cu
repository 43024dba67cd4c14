#include "kernels/cuda/instances/instance_lists.h"
#include "kernels/cuda/linear/gemm_e4m3.cuh"

namespace baton::cuda {
BATON_E4M3_INSTANCES(template)
}  // namespace baton::cuda
