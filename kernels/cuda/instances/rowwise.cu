#include "kernels/cuda/instances/instance_lists.h"
#include "kernels/cuda/rows/activation.cuh"
#include "kernels/cuda/rows/add_rows.cuh"
#include "kernels/cuda/rows/embedding.cuh"
#include "kernels/cuda/rows/rmsnorm.cuh"

namespace baton::cuda {
BATON_ROWWISE_INSTANCES(template)
}  // namespace baton::cuda
