#include "kernels/cuda/gemv.cuh"
#include "kernels/cuda/instance_lists.h"

namespace baton::cuda {
BATON_GEMV_INSTANCES(template)
}  // namespace baton::cuda
