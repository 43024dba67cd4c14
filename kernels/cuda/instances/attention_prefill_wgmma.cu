#include "kernels/cuda/attention/attention_prefill_wgmma.cuh"
#include "kernels/cuda/instances/instance_lists.h"

namespace baton::cuda {
BATON_WGMMA_PREFILL_INSTANCES(template, 64)
BATON_WGMMA_PREFILL_INSTANCES(template, 128)
}  // namespace baton::cuda
