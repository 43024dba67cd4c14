#include "kernels/cuda/instances.h"

namespace baton::cuda {
BATON_GEMM_INSTANCES(template)
}  // namespace baton::cuda
