#include "kernels/cuda/instances/instance_lists.h"
#include "kernels/cuda/linear/gemv.cuh"

namespace baton::cuda {
BATON_GEMV_INSTANCES(template)
}  // namespace baton::cuda
