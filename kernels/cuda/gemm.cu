#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/gemm_quant.cuh"
#include "kernels/cuda/instance_lists.h"

namespace baton::cuda {
BATON_GEMM_INSTANCES(template)
}  // namespace baton::cuda
