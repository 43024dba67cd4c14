#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/add_rows.cuh"
#include "kernels/cuda/embedding.cuh"
#include "kernels/cuda/instance_lists.h"
#include "kernels/cuda/rmsnorm.cuh"

namespace baton::cuda {
BATON_ROWWISE_INSTANCES(template)
}  // namespace baton::cuda
