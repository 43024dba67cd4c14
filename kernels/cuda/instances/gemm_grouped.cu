#include "kernels/cuda/instances/instance_lists.h"
#include "kernels/cuda/moe/gemm_grouped.cuh"

namespace baton::cuda {
BATON_GROUPED_INSTANCES(template)
}  // namespace baton::cuda
