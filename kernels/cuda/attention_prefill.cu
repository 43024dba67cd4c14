#include "kernels/cuda/instances.h"

namespace baton::cuda {
#define BATON_DEFINE(dim) BATON_PREFILL_INSTANCES(template, dim)
BATON_FOR_HEAD_DIMS(BATON_DEFINE)
}  // namespace baton::cuda
