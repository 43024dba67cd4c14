#include "kernels/cuda/instance_lists.h"
#include "kernels/cuda/mla_decode.cuh"

namespace baton::cuda {
BATON_MLA_INSTANCES(template)
}  // namespace baton::cuda
