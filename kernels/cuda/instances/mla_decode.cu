#include "kernels/cuda/attention/mla_decode.cuh"
#include "kernels/cuda/instances/instance_lists.h"

namespace baton::cuda {
BATON_MLA_INSTANCES(template)
}  // namespace baton::cuda
