// The kernels that are compiled, each in one .cu file; here declared, so that their callers do not compile them again.
#pragma once

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/attention_decode.cuh"
#include "kernels/cuda/attention_prefill.cuh"
#include "kernels/cuda/embedding.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/gemm_quant.cuh"
#include "kernels/cuda/kv_gather.cuh"
#include "kernels/cuda/kv_scatter.cuh"
#include "kernels/cuda/merge_state.cuh"
#include "kernels/cuda/mla_decode.cuh"
#include "kernels/cuda/moe_route.cuh"
#include "kernels/cuda/rmsnorm.cuh"
#include "kernels/cuda/rope_kv_write.cuh"
#include "kernels/cuda/row_ops.cuh"
#include "kernels/cuda/sampler.cuh"

/// what(head_dim) for every head_dim that attention is compiled for.
#define BATON_FOR_HEAD_DIMS(what) what(64) what(80) what(96) what(128) what(256)

#define BATON_ROWWISE_INSTANCES(declare)                                                                           \
  declare void LaunchRmsNorm(gpu::Stream&, const RmsNormParams<px::bf16, px::bf16>&, bool);                        \
  declare void LaunchRmsNorm(gpu::Stream&, const RmsNormParams<px::bf16, float>&, bool);                           \
  declare void LaunchRmsNorm(gpu::Stream&, const RmsNormParams<float, px::bf16>&, bool);                           \
  declare void LaunchRmsNorm(gpu::Stream&, const RmsNormParams<float, float>&, bool);                              \
  declare void LaunchRmsNorm(gpu::Stream&, const RmsNormParams<px::bf16, px::e4m3>&, bool);                        \
  declare void LaunchGatedActivation<Gate::kSilu>(gpu::Stream&, const GatedActivationParams<px::bf16>&, bool);     \
  declare void LaunchGatedActivation<Gate::kGeluTanh>(gpu::Stream&, const GatedActivationParams<px::bf16>&, bool); \
  declare void LaunchGatedActivation<Gate::kSilu>(gpu::Stream&, const GatedActivationParams<px::e4m3>&, bool);     \
  declare void LaunchGatedActivation<Gate::kGeluTanh>(gpu::Stream&, const GatedActivationParams<px::e4m3>&, bool); \
  declare void LaunchEmbedding(gpu::Stream&, const EmbeddingParams<float>&, bool);                                 \
  declare void LaunchEmbedding(gpu::Stream&, const EmbeddingParams<px::bf16>&, bool);                              \
  declare void LaunchEmbedding(gpu::Stream&, const EmbeddingParams<px::f16>&, bool);                               \
  declare void LaunchAddRows(gpu::Stream&, const AddRowsParams<float>&);                                           \
  declare void LaunchAddRows(gpu::Stream&, const AddRowsParams<px::bf16>&);

#define BATON_GEMM_INSTANCES(declare)                                                    \
  declare void LaunchGemm(gpu::Stream&, const GemmParams<px::bf16>&, bool);              \
  declare void LaunchGemm(gpu::Stream&, const GemmParams<float>&, bool);                 \
  declare void LaunchQuantGemm<4>(gpu::Stream&, const QuantGemmParams<px::bf16>&, bool); \
  declare void LaunchQuantGemm<4>(gpu::Stream&, const QuantGemmParams<float>&, bool);    \
  declare void LaunchQuantGemm<8>(gpu::Stream&, const QuantGemmParams<px::bf16>&, bool); \
  declare void LaunchQuantGemm<8>(gpu::Stream&, const QuantGemmParams<float>&, bool);

#define BATON_ROPE_INSTANCES(declare, dim)                                                     \
  declare void LaunchRopeKv<px::bf16, dim>(gpu::Stream&, const RopeKvParams<px::bf16>&, bool); \
  declare void LaunchRopeKv<px::e4m3, dim>(gpu::Stream&, const RopeKvParams<px::e4m3>&, bool);

#define BATON_PREFILL_INSTANCES(declare, dim)                                                                         \
  declare void LaunchPrefillAttention<px::bf16, dim, true>(gpu::Stream&, const PrefillParams<px::bf16>&, int, bool);  \
  declare void LaunchPrefillAttention<px::bf16, dim, false>(gpu::Stream&, const PrefillParams<px::bf16>&, int, bool); \
  declare void LaunchPrefillAttention<px::e4m3, dim, true>(gpu::Stream&, const PrefillParams<px::e4m3>&, int, bool);  \
  declare void LaunchPrefillAttention<px::e4m3, dim, false>(gpu::Stream&, const PrefillParams<px::e4m3>&, int, bool);

#define BATON_DECODE_INSTANCES(declare, dim)                                                                        \
  declare void LaunchDecodeAttention<px::bf16, dim, true>(gpu::Stream&, const DecodeParams<px::bf16>&, int, bool);  \
  declare void LaunchDecodeAttention<px::bf16, dim, false>(gpu::Stream&, const DecodeParams<px::bf16>&, int, bool); \
  declare void LaunchDecodeAttention<px::e4m3, dim, true>(gpu::Stream&, const DecodeParams<px::e4m3>&, int, bool);  \
  declare void LaunchDecodeAttention<px::e4m3, dim, false>(gpu::Stream&, const DecodeParams<px::e4m3>&, int, bool);

#define BATON_MLA_INSTANCES(declare)                                                          \
  declare void LaunchMlaDecode<true>(gpu::Stream&, const DecodeParams<px::bf16>&, int, bool); \
  declare void LaunchMlaDecode<false>(gpu::Stream&, const DecodeParams<px::bf16>&, int, bool);

namespace baton::cuda {
BATON_MLA_INSTANCES(extern template)
BATON_ROWWISE_INSTANCES(extern template)
BATON_GEMM_INSTANCES(extern template)
#define BATON_DECLARE(dim)                      \
  BATON_ROPE_INSTANCES(extern template, dim)    \
  BATON_PREFILL_INSTANCES(extern template, dim) \
  BATON_DECODE_INSTANCES(extern template, dim)
BATON_FOR_HEAD_DIMS(BATON_DECLARE)
#undef BATON_DECLARE
}  // namespace baton::cuda
