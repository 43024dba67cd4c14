#include "kernels/cuda/attention/attention_decode.cuh"
#include "kernels/cuda/instances/instance_lists.h"

namespace baton::cuda {
#define BATON_DEFINE(dim) BATON_DECODE_INSTANCES(template, dim)
BATON_FOR_HEAD_DIMS(BATON_DEFINE)
}  // namespace baton::cuda
