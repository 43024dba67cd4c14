#include "kernels/cuda/instances.h"

namespace baton::cuda {
BATON_ROWWISE_INSTANCES(template)
}  // namespace baton::cuda
