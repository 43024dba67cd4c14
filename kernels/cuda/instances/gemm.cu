#include "kernels/cuda/instances/instance_lists.h"
#include "kernels/cuda/linear/dequantize.cuh"
#include "kernels/cuda/linear/gemm.cuh"
#include "kernels/cuda/linear/gemm_quant.cuh"

namespace baton::cuda {
BATON_GEMM_INSTANCES(template)
}  // namespace baton::cuda
