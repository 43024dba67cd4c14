// The kernels that are compiled, each in one .cu file; here declared, so that their callers do not compile them again.
#pragma once

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/add_rows.cuh"
#include "kernels/cuda/attention_decode.cuh"
#include "kernels/cuda/attention_prefill.cuh"
#include "kernels/cuda/begin_units.cuh"
#include "kernels/cuda/copy_blocks.cuh"
#include "kernels/cuda/embedding.cuh"
#include "kernels/cuda/gather_rows.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/gemm_grouped.cuh"
#include "kernels/cuda/gemm_quant.cuh"
#include "kernels/cuda/gemm_wgmma.cuh"
#include "kernels/cuda/gemv.cuh"
#include "kernels/cuda/instance_lists.h"
#include "kernels/cuda/kv_gather.cuh"
#include "kernels/cuda/kv_scatter.cuh"
#include "kernels/cuda/merge_state.cuh"
#include "kernels/cuda/mla_decode.cuh"
#include "kernels/cuda/moe_combine.cuh"
#include "kernels/cuda/moe_lists.cuh"
#include "kernels/cuda/moe_route.cuh"
#include "kernels/cuda/rmsnorm.cuh"
#include "kernels/cuda/rope_kv_write.cuh"
#include "kernels/cuda/sampler.cuh"
#include "kernels/cuda/soft_cap.cuh"

namespace baton::cuda {
BATON_MLA_INSTANCES(extern template)
BATON_ROWWISE_INSTANCES(extern template)
BATON_GEMM_INSTANCES(extern template)
BATON_GEMV_INSTANCES(extern template)
BATON_GROUPED_INSTANCES(extern template)
BATON_WGMMA_INSTANCES(extern template)
#define BATON_DECLARE(dim)                      \
  BATON_ROPE_INSTANCES(extern template, dim)    \
  BATON_PREFILL_INSTANCES(extern template, dim) \
  BATON_DECODE_INSTANCES(extern template, dim)
BATON_FOR_HEAD_DIMS(BATON_DECLARE)
#undef BATON_DECLARE
}  // namespace baton::cuda
