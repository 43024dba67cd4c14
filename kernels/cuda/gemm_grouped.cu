#include "kernels/cuda/gemm_grouped.cuh"
#include "kernels/cuda/instance_lists.h"

namespace baton::cuda {
BATON_GROUPED_INSTANCES(template)
}  // namespace baton::cuda
