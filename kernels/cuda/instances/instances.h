// The kernels that are compiled, each in one .cu file; here declared, so that their callers do not compile them again.
#pragma once

#include "kernels/cuda/attention/attention_decode.cuh"
#include "kernels/cuda/attention/attention_prefill.cuh"
#include "kernels/cuda/attention/attention_prefill_wgmma.cuh"
#include "kernels/cuda/attention/merge_state.cuh"
#include "kernels/cuda/attention/mla_decode.cuh"
#include "kernels/cuda/instances/instance_lists.h"
#include "kernels/cuda/kv/copy_blocks.cuh"
#include "kernels/cuda/kv/kv_gather.cuh"
#include "kernels/cuda/kv/kv_scatter.cuh"
#include "kernels/cuda/linear/dequantize.cuh"
#include "kernels/cuda/linear/gemm.cuh"
#include "kernels/cuda/linear/gemm_e4m3.cuh"
#include "kernels/cuda/linear/gemm_e4m3_wgmma.cuh"
#include "kernels/cuda/linear/gemm_quant.cuh"
#include "kernels/cuda/linear/gemm_wgmma.cuh"
#include "kernels/cuda/linear/gemm_wgmma_narrow.cuh"
#include "kernels/cuda/linear/gemv.cuh"
#include "kernels/cuda/linear/round_inputs.cuh"
#include "kernels/cuda/moe/gemm_grouped.cuh"
#include "kernels/cuda/moe/moe_combine.cuh"
#include "kernels/cuda/moe/moe_lists.cuh"
#include "kernels/cuda/moe/moe_route.cuh"
#include "kernels/cuda/rows/activation.cuh"
#include "kernels/cuda/rows/add_rows.cuh"
#include "kernels/cuda/rows/begin_units.cuh"
#include "kernels/cuda/rows/embedding.cuh"
#include "kernels/cuda/rows/gather_columns.cuh"
#include "kernels/cuda/rows/gather_rows.cuh"
#include "kernels/cuda/rows/peer_sum.cuh"
#include "kernels/cuda/rows/rmsnorm.cuh"
#include "kernels/cuda/rows/rope_kv_write.cuh"
#include "kernels/cuda/rows/sampler.cuh"
#include "kernels/cuda/rows/soft_cap.cuh"
#include "kernels/cuda/rows/tree_sum.cuh"

namespace baton::cuda {
BATON_MLA_INSTANCES(extern template)
BATON_ROWWISE_INSTANCES(extern template)
BATON_GEMM_INSTANCES(extern template)
BATON_E4M3_INSTANCES(extern template)
BATON_E4M3_WGMMA_INSTANCES(extern template)
BATON_GEMV_INSTANCES(extern template)
BATON_GROUPED_INSTANCES(extern template)
BATON_WGMMA_INSTANCES(extern template)
BATON_WGMMA_PREFILL_INSTANCES(extern template, 64)
BATON_WGMMA_PREFILL_INSTANCES(extern template, 128)
#define BATON_DECLARE(dim)                      \
  BATON_ROPE_INSTANCES(extern template, dim)    \
  BATON_PREFILL_INSTANCES(extern template, dim) \
  BATON_DECODE_INSTANCES(extern template, dim)
BATON_FOR_HEAD_DIMS(BATON_DECLARE)
#undef BATON_DECLARE
}  // namespace baton::cuda
