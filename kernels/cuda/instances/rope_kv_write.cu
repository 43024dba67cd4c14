#include "kernels/cuda/instances/instance_lists.h"
#include "kernels/cuda/rows/rope_kv_write.cuh"

namespace baton::cuda {
#define BATON_DEFINE(dim) BATON_ROPE_INSTANCES(template, dim)
BATON_FOR_HEAD_DIMS(BATON_DEFINE)
}  // namespace baton::cuda
