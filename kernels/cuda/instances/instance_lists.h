// Which instances of the kernel templates are compiled, as lists: a .cu file defines its list, instances.h declares
// all. No includes: a .cu file compiles the kernels of the headers it names and no others.
#pragma once

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

#define BATON_GEMM_INSTANCES(declare)                                                                      \
  declare void LaunchGemm(gpu::Stream&, const GemmParams<px::bf16>&, bool);                                \
  declare void LaunchGemm(gpu::Stream&, const GemmParams<float>&, bool);                                   \
  declare void LaunchDequantize<WeightFormat::kInt4>(gpu::Stream&, const DequantizeParams&);               \
  declare void LaunchDequantize<WeightFormat::kInt8>(gpu::Stream&, const DequantizeParams&);               \
  declare void LaunchDequantize<WeightFormat::kE4m3>(gpu::Stream&, const DequantizeParams&);               \
  declare void LaunchQuantGemm<WeightFormat::kInt4>(gpu::Stream&, const QuantGemmParams<px::bf16>&, bool); \
  declare void LaunchQuantGemm<WeightFormat::kInt4>(gpu::Stream&, const QuantGemmParams<float>&, bool);    \
  declare void LaunchQuantGemm<WeightFormat::kInt8>(gpu::Stream&, const QuantGemmParams<px::bf16>&, bool); \
  declare void LaunchQuantGemm<WeightFormat::kInt8>(gpu::Stream&, const QuantGemmParams<float>&, bool);    \
  declare void LaunchQuantGemm<WeightFormat::kE4m3>(gpu::Stream&, const QuantGemmParams<px::bf16>&, bool); \
  declare void LaunchQuantGemm<WeightFormat::kE4m3>(gpu::Stream&, const QuantGemmParams<float>&, bool);

#define BATON_E4M3_INSTANCES(declare)                                               \
  declare void LaunchE4m3Gemm(gpu::Stream&, const E4m3GemmParams<px::bf16>&, bool); \
  declare void LaunchE4m3Gemm(gpu::Stream&, const E4m3GemmParams<float>&, bool);

#define BATON_WGMMA_INSTANCES(declare)                                                 \
  declare void LaunchWgmmaGemm(gpu::Stream&, const GemmParams<px::bf16>&, int, bool);  \
  declare void LaunchWgmmaGemm(gpu::Stream&, const GemmParams<float>&, int, bool);     \
  declare void LaunchNarrowGemm(gpu::Stream&, const GemmParams<px::bf16>&, int, bool); \
  declare void LaunchNarrowGemm(gpu::Stream&, const GemmParams<float>&, int, bool);

#define BATON_E4M3_WGMMA_INSTANCES(declare)                                               \
  declare void LaunchE4m3Wgmma(gpu::Stream&, const E4m3GemmParams<px::bf16>&, int, bool); \
  declare void LaunchE4m3Wgmma(gpu::Stream&, const E4m3GemmParams<float>&, int, bool);

#define BATON_GROUPED_INSTANCES(declare)                                                  \
  declare void LaunchGroupedGemm(gpu::Stream&, const GroupedGemmParams<px::bf16>&, bool); \
  declare void LaunchGroupedGemm(gpu::Stream&, const GroupedGemmParams<float>&, bool);

#define BATON_GEMV_INSTANCES(declare)                                                         \
  declare void LaunchGemv<WeightFormat::kBf16, false>(gpu::Stream&, const GemvParams&, bool); \
  declare void LaunchGemv<WeightFormat::kBf16, true>(gpu::Stream&, const GemvParams&, bool);  \
  declare void LaunchGemv<WeightFormat::kInt8, false>(gpu::Stream&, const GemvParams&, bool); \
  declare void LaunchGemv<WeightFormat::kInt8, true>(gpu::Stream&, const GemvParams&, bool);  \
  declare void LaunchGemv<WeightFormat::kInt4, false>(gpu::Stream&, const GemvParams&, bool); \
  declare void LaunchGemv<WeightFormat::kInt4, true>(gpu::Stream&, const GemvParams&, bool);  \
  declare void LaunchGemv<WeightFormat::kE4m3, false>(gpu::Stream&, const GemvParams&, bool); \
  declare void LaunchGemv<WeightFormat::kE4m3, true>(gpu::Stream&, const GemvParams&, bool);

#define BATON_ROPE_INSTANCES(declare, dim)                                                     \
  declare void LaunchRopeKv<px::bf16, dim>(gpu::Stream&, const RopeKvParams<px::bf16>&, bool); \
  declare void LaunchRopeKv<px::e4m3, dim>(gpu::Stream&, const RopeKvParams<px::e4m3>&, bool);

#define BATON_PREFILL_INSTANCES(declare, dim)                                                                         \
  declare void LaunchPrefillAttention<px::bf16, dim, true>(gpu::Stream&, const PrefillParams<px::bf16>&, int, bool);  \
  declare void LaunchPrefillAttention<px::bf16, dim, false>(gpu::Stream&, const PrefillParams<px::bf16>&, int, bool); \
  declare void LaunchPrefillAttention<px::e4m3, dim, true>(gpu::Stream&, const PrefillParams<px::e4m3>&, int, bool);  \
  declare void LaunchPrefillAttention<px::e4m3, dim, false>(gpu::Stream&, const PrefillParams<px::e4m3>&, int, bool);

#define BATON_WGMMA_PREFILL_INSTANCES(declare, dim)                                                    \
  declare void LaunchWgmmaPrefill<dim, true>(gpu::Stream&, const PrefillParams<px::bf16>&, int, bool); \
  declare void LaunchWgmmaPrefill<dim, false>(gpu::Stream&, const PrefillParams<px::bf16>&, int, bool);

#define BATON_DECODE_INSTANCES(declare, dim)                                                                        \
  declare void LaunchDecodeAttention<px::bf16, dim, true>(gpu::Stream&, const DecodeParams<px::bf16>&, int, bool);  \
  declare void LaunchDecodeAttention<px::bf16, dim, false>(gpu::Stream&, const DecodeParams<px::bf16>&, int, bool); \
  declare void LaunchDecodeAttention<px::e4m3, dim, true>(gpu::Stream&, const DecodeParams<px::e4m3>&, int, bool);  \
  declare void LaunchDecodeAttention<px::e4m3, dim, false>(gpu::Stream&, const DecodeParams<px::e4m3>&, int, bool);

#define BATON_MLA_INSTANCES(declare)                                                           \
  declare void LaunchMlaDecode<true>(gpu::Stream&, const DecodeParams<px::bf16>&, int, bool);  \
  declare void LaunchMlaDecode<false>(gpu::Stream&, const DecodeParams<px::bf16>&, int, bool); \
  declare void LaunchMlaDecode<true>(gpu::Stream&, const DecodeParams<px::e4m3>&, int, bool);  \
  declare void LaunchMlaDecode<false>(gpu::Stream&, const DecodeParams<px::e4m3>&, int, bool);
