#include "kernels/cuda/instances.h"

namespace baton::cuda {
BATON_MLA_INSTANCES(template)
}  // namespace baton::cuda
