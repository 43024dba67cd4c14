#include "kernels/cuda/cuda_ops.h"

#include <cstring>
#include <type_traits>

#include "common/check.h"
#include "common/kv_layout.h"
#include "common/status.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/instances.h"
#include "kernels/cuda/packed_weight.h"
#include "kernels/cuda/rope_cache.h"
#include "kernels/cuda/sample_rows.h"
#include "kernels/cuda/step_upload.h"

namespace baton::kernels {
namespace {

using cuda::Scratch;
using px::bf16;
using px::e4m3;

constexpr int kMaxKvHeads = 256;

template <typename T>
T* Row(const Tensor& t) {
  return static_cast<T*>(t.data);
}
int Int(int64_t n) { return static_cast<int>(n); }

class CudaOps final : public Ops {
 public:
  explicit CudaOps(const CudaOpsConfig& config)
      : deterministic_(config.deterministic),
        device_(gpu::CurrentDevice()),
        steps_(stream_),
        rope_(stream_),
        ids_(stream_),
        partial_o_(stream_),
        partial_ml_(stream_),
        sample_(stream_) {
#if !defined(__CUDACC__)
    stream_.SetPolicy(config.policy);
#endif
    traits_ = {DType::kBF16,
               config.kv_dtype,
               device_.architecture,
               deterministic_ ? "cuda-2" : "cuda-2-fast",
               1,
               gpu::kHostMemory,
               8};
    const std::vector<float> ones(kMaxKvHeads, 1.0f);
    ones_ = std::make_unique<gpu::Memory>(ones.size() * sizeof(float));
    stream_.Upload(ones_->data(), ones.data(), ones_->bytes());
  }

  /// Queued work still reads the members.
  ~CudaOps() override { stream_.Synchronize(); }

  const OpsTraits& traits() const override { return traits_; }
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) override;
  void CopyToDevice(void* dst, const void* src, size_t bytes) override { stream_.Upload(dst, src, bytes); }
  void CopyToHost(void* dst, const void* src, size_t bytes) override {
    stream_.CopyAsync(dst, src, bytes);
    Sync();
  }
  void Sync() override {
    const std::string error = stream_.Synchronize();
    BATON_CHECK(error.empty(), "device: ", error);
  }
  absl::StatusOr<std::unique_ptr<PackedLinear>> Pack(const Tensor& weight, const float* bias) override {
    return cuda::PackedWeight::Make(stream_, weight, bias);
  }

  void Embedding(std::span<const int32_t> ids, const Tensor& table, float scale, const Tensor& out) override;
  void RmsNorm(const Tensor& x, const float* weight, float weight_offset, float eps, const Tensor& out) override;
  void AddRmsNorm(const Tensor& x, const Tensor& residual, const float* weight, float weight_offset, float eps,
                  const Tensor& out) override;
  void Add(const Tensor& x, const Tensor& residual) override;
  void Linear(const Tensor& x, const PackedLinear& w, const Tensor& out) override;
  void GatedActivation(Activation act, const Tensor& gate_up, const Tensor& out) override;
  void GatherRows(const Tensor& x, std::span<const int32_t> rows, const Tensor& out) override;
  void RopeAndWriteKv(const Tensor& q, const Tensor& k, const Tensor& v, const float* q_norm, const float* k_norm,
                      float norm_offset, float norm_eps, const RopeParams& rope, const RaggedBatch& batch,
                      const KvLayerView& kv) override;
  void Attention(const Tensor& q, const RaggedBatch& batch, const KvLayerView& kv, const AttentionParams& params,
                 const Tensor& out) override;
  void CopyBlocks(std::span<const int32_t> src, std::span<const int32_t> dst, const KvLayerView& kv) override;
  void SoftCap(float cap, const Tensor& x) override;
  std::vector<SampleResult> Sample(const Tensor& logits, std::span<const SampleRow> rows) override;
  std::vector<SampleResult> Logprobs(const Tensor& logits, std::span<const int32_t> targets, int32_t k) override;

 private:
  template <typename In>
  void Norm(const Tensor* x, const Tensor& residual, const float* weight, float offset, float eps, const Tensor& out);
  template <typename Kv, int kDim>
  void RopeOf(cuda::RopeKvParams<Kv> p) {
    cuda::LaunchRopeKv<Kv, kDim>(stream_, p, false);
  }
  template <typename Kv>
  void WriteKv(const Tensor& q, const Tensor& k, const Tensor& v, const float* q_norm, const float* k_norm,
               float norm_offset, float norm_eps, const RopeParams& rope, const cuda::StepOnDevice& step,
               const KvLayerView& kv);
  template <typename Kv>
  void Attend(const Tensor& q, const RaggedBatch& batch, const KvLayerView& kv, const AttentionParams& params,
              const Tensor& out);
  const float* ones() const { return static_cast<const float*>(ones_->data()); }

  const bool deterministic_;
  gpu::DeviceInfo device_;
  OpsTraits traits_;
  gpu::Stream stream_;
  cuda::StepUploads steps_;
  cuda::RopeCache rope_;
  Scratch ids_, partial_o_, partial_ml_, sample_;
  std::unique_ptr<gpu::Memory> ones_;  // scales of e4m3 KV
};

absl::StatusOr<std::unique_ptr<Buffer>> CudaOps::Allocate(size_t bytes) {
  const size_t free = gpu::CurrentDevice().free_bytes;
  if (bytes > free) {
    return absl::ResourceExhaustedError(StrCat("need ", bytes, " bytes of device memory, ", free, " are free"));
  }
  auto buffer = std::make_unique<DeviceBuffer>(stream_, bytes);
  stream_.FillAsync(buffer->data(), 0, bytes);
  return buffer;
}

// ---- dense

void CudaOps::Embedding(std::span<const int32_t> ids, const Tensor& table, float scale, const Tensor& out) {
  BATON_CHECK(out.rows() == static_cast<int64_t>(ids.size()) && out.cols() == table.cols() &&
              out.dtype == DType::kF32 && out.cols() % 8 == 0);
  for (int32_t id : ids) BATON_CHECK(id >= 0 && id < table.rows(), "token ", id, " of a vocabulary of ", table.rows());
  const int32_t* on_device = ids_.Upload(ids);
  auto launch = [&]<typename T>(const T* data) {
    cuda::LaunchEmbedding(stream_,
                          cuda::EmbeddingParams<T>{on_device, data, Row<float>(out), table.row_stride, out.row_stride,
                                                   Int(ids.size()), Int(out.cols()), 0, Int(table.rows()), scale},
                          false);
  };
  switch (table.dtype) {
    case DType::kF32: return launch(Row<const float>(table));
    case DType::kBF16: return launch(Row<const bf16>(table));
    case DType::kF16: return launch(Row<const px::f16>(table));
    default: BATON_CHECK(false, "embedding of ", DTypeName(table.dtype));
  }
}

template <typename In>
void CudaOps::Norm(const Tensor* x, const Tensor& residual, const float* weight, float offset, float eps,
                   const Tensor& out) {
  BATON_CHECK(residual.dtype == DType::kF32 && residual.rows() == out.rows() && residual.cols() == out.cols() &&
              out.cols() % 8 == 0);
  auto launch = [&]<typename Out>(Out* to) {
    cuda::LaunchRmsNorm(
        stream_,
        cuda::RmsNormParams<In, Out>{x != nullptr ? Row<const In>(*x) : nullptr, Row<float>(residual), weight, to,
                                     x != nullptr ? x->row_stride : 0, residual.row_stride, out.row_stride,
                                     Int(out.rows()), Int(out.cols()), eps, offset, 1.0f},
        false);
  };
  if (out.dtype == DType::kF32)
    launch(Row<float>(out));
  else
    launch(Row<bf16>(out));
}

void CudaOps::RmsNorm(const Tensor& x, const float* weight, float weight_offset, float eps, const Tensor& out) {
  Norm<float>(nullptr, x, weight, weight_offset, eps, out);
}

void CudaOps::AddRmsNorm(const Tensor& x, const Tensor& residual, const float* weight, float weight_offset, float eps,
                         const Tensor& out) {
  BATON_CHECK(x.rows() == residual.rows() && x.cols() == residual.cols());
  if (x.dtype == DType::kF32)
    Norm<float>(&x, residual, weight, weight_offset, eps, out);
  else
    Norm<bf16>(&x, residual, weight, weight_offset, eps, out);
}

void CudaOps::Add(const Tensor& x, const Tensor& residual) {
  BATON_CHECK(residual.dtype == DType::kF32 && x.rows() == residual.rows() && x.cols() == residual.cols() &&
              x.cols() % 8 == 0);
  auto launch = [&]<typename In>(const In* data) {
    cuda::LaunchAddRows(stream_, cuda::AddRowsParams<In>{data, Row<float>(residual), x.row_stride, residual.row_stride,
                                                         Int(x.rows()), Int(x.cols())});
  };
  if (x.dtype == DType::kF32)
    launch(Row<const float>(x));
  else
    launch(Row<const bf16>(x));
}

void CudaOps::Linear(const Tensor& x, const PackedLinear& weight, const Tensor& out) {
  const auto& w = static_cast<const cuda::PackedWeight&>(weight);
  BATON_CHECK(x.dtype == DType::kBF16 && x.cols() == w.in_features() && out.cols() == w.out_features() &&
                  x.rows() == out.rows() && x.row_stride % 8 == 0,
              "x [", x.rows(), ", ", x.cols(), "], weight [", w.out_features(), ", ", w.in_features(), "], out [",
              out.rows(), ", ", out.cols(), "]");
  if (cuda::GemvFits(Int(x.rows()), Int(x.cols()))) {  // the same bits as the GEMM
    cuda::GemvParams p{.x = Row<const bf16>(x), .x_stride = x.row_stride, .w = w.data(), .w_stride = w.row_stride()};
    p.bias = w.bias(), p.out = out.data, p.out_stride = out.row_stride;
    p.m = Int(x.rows()), p.n = Int(w.out_features()), p.k = Int(w.in_features());
    p.store = out.dtype == DType::kF32 ? cuda::GemvStore::kF32 : cuda::GemvStore::kBf16;
    return cuda::LaunchGemv<cuda::GemvWeight::kBf16, false>(stream_, p, false);
  }
  auto launch = [&]<typename Out>(Out* to) {
    const cuda::GemmParams<Out> p{Row<const bf16>(x),
                                  w.data(),
                                  w.bias(),
                                  to,
                                  x.row_stride,
                                  w.row_stride(),
                                  out.row_stride,
                                  Int(x.rows()),
                                  Int(w.out_features()),
                                  Int(w.in_features())};
    if (!deterministic_ && cuda::WgmmaSuits(device_.architecture, p.m))
      cuda::LaunchWgmmaGemm(stream_, p, device_.multiprocessors, false);
    else
      cuda::LaunchGemm(stream_, p, false);
  };
  if (out.dtype == DType::kF32)
    launch(Row<float>(out));
  else
    launch(Row<bf16>(out));
}

void CudaOps::GatedActivation(Activation act, const Tensor& gate_up, const Tensor& out) {
  BATON_CHECK(gate_up.cols() == 2 * out.cols() && gate_up.rows() == out.rows() && gate_up.dtype == DType::kBF16 &&
              out.dtype == DType::kBF16 && out.cols() % 8 == 0);
  const cuda::GatedActivationParams<bf16> p{Row<const bf16>(gate_up),
                                            Row<bf16>(out),
                                            gate_up.row_stride,
                                            out.row_stride,
                                            Int(out.rows()),
                                            Int(out.cols()),
                                            1.0f};
  if (act == Activation::kSilu)
    cuda::LaunchGatedActivation<cuda::Gate::kSilu>(stream_, p, false);
  else
    cuda::LaunchGatedActivation<cuda::Gate::kGeluTanh>(stream_, p, false);
}

void CudaOps::GatherRows(const Tensor& x, std::span<const int32_t> rows, const Tensor& out) {
  const int64_t element = static_cast<int64_t>(DTypeBytes(x.dtype));
  BATON_CHECK(out.rows() == static_cast<int64_t>(rows.size()) && out.cols() == x.cols() && out.dtype == x.dtype &&
              x.cols() * element % 4 == 0);
  for (int32_t r : rows) BATON_CHECK(r >= 0 && r < x.rows(), "row ", r, " of ", x.rows());
  cuda::LaunchGatherRows(
      stream_, {Row<const unsigned char>(x), Row<unsigned char>(out), ids_.Upload(rows), x.row_stride * element,
                out.row_stride * element, Int(rows.size()), Int(x.cols() * element)});
}

void CudaOps::SoftCap(float cap, const Tensor& x) {
  BATON_CHECK(x.dtype == DType::kF32 && cap > 0);
  cuda::LaunchSoftCap(stream_, {Row<float>(x), x.row_stride, Int(x.rows()), Int(x.cols()), cap});
}

// ---- attention

template <typename Kv>
void CudaOps::WriteKv(const Tensor& q, const Tensor& k, const Tensor& v, const float* q_norm, const float* k_norm,
                      float norm_offset, float norm_eps, const RopeParams& rope, const cuda::StepOnDevice& step,
                      const KvLayerView& kv) {
  const float* table = rope_.Get(rope, step.last_position + 1);
  const cuda::RopeKvParams<Kv> p{Row<const bf16>(q),
                                 Row<const bf16>(k),
                                 Row<const bf16>(v),
                                 q.row_stride,
                                 k.row_stride,
                                 v.row_stride,
                                 Row<bf16>(q),
                                 q.row_stride,
                                 q_norm,
                                 k_norm,
                                 table,
                                 step.positions,
                                 step.slots,
                                 static_cast<Kv*>(kv.k.base),
                                 static_cast<Kv*>(kv.v.base),
                                 kv.k.block_stride_bytes / static_cast<int64_t>(sizeof(Kv)),
                                 ones(),
                                 ones(),
                                 kv.k.digests,
                                 kv.v.digests,
                                 kv.k.digest_block_stride,
                                 step.rows,
                                 Int(q.cols() / kv.k.dim),
                                 kv.k.heads,
                                 rope.rotary_dim,
                                 kv.k.tokens_per_block,
                                 kv.layer,
                                 kv.first_head,
                                 norm_eps,
                                 norm_offset};
  switch (kv.k.dim) {
#define BATON_CASE(dim) \
  case dim: return RopeOf<Kv, dim>(p);
    BATON_FOR_HEAD_DIMS(BATON_CASE)
#undef BATON_CASE
    default: BATON_CHECK(false, "head_dim ", kv.k.dim);
  }
}

void CudaOps::RopeAndWriteKv(const Tensor& q, const Tensor& k, const Tensor& v, const float* q_norm,
                             const float* k_norm, float norm_offset, float norm_eps, const RopeParams& rope,
                             const RaggedBatch& batch, const KvLayerView& kv) {
  BATON_CHECK(kv.k.dtype == traits_.kv && kv.k.dim == kv.v.dim && kv.k.block_stride_bytes == kv.v.block_stride_bytes &&
              kv.k.heads <= kMaxKvHeads && kv.k.digest_block_stride == kv.v.digest_block_stride &&
              rope.rotary_dim <= kv.k.dim);
  const cuda::StepOnDevice& step = steps_.Of(batch, kv.k.tokens_per_block).Get(batch, kv.k.tokens_per_block);
  BATON_CHECK(q.rows() == step.rows && k.rows() == step.rows && v.rows() == step.rows, "q of ", q.rows(),
              " rows, batch of ", step.rows);
  if (step.rows == 0) return;
  if (kv.k.digests != nullptr)
    cuda::LaunchBeginUnits(stream_, {kv.k.digests, kv.v.digests, kv.k.digest_block_stride, step.slots, step.rows,
                                     kv.k.heads, kv.k.tokens_per_block, kUnitTokens});
  if (traits_.kv == DType::kBF16)
    WriteKv<bf16>(q, k, v, q_norm, k_norm, norm_offset, norm_eps, rope, step, kv);
  else
    WriteKv<e4m3>(q, k, v, q_norm, k_norm, norm_offset, norm_eps, rope, step, kv);
}

template <typename Kv>
void CudaOps::Attend(const Tensor& q, const RaggedBatch& batch, const KvLayerView& kv, const AttentionParams& params,
                     const Tensor& out) {
  const int q_heads = Int(q.cols() / kv.k.dim);
  cuda::StepUpload& upload = steps_.Of(batch, kv.k.tokens_per_block);
  const cuda::StepOnDevice& step = upload.Get(batch, kv.k.tokens_per_block);
  const int blocks = device_.multiprocessors * cuda::kDecodeBlocksPerSm;
  const cuda::AttentionWork& work = upload.Work(q_heads, kv.k.heads, params.window, deterministic_ ? 0 : blocks);
  const cuda::PagedKv<Kv> cache{static_cast<const Kv*>(kv.k.base),
                                static_cast<const Kv*>(kv.v.base),
                                kv.k.block_stride_bytes / static_cast<int64_t>(sizeof(Kv)),
                                step.tables,
                                step.table_stride,
                                0,
                                step.lengths,
                                1,
                                0,
                                cuda::MakeBlockSize(kv.k.tokens_per_block),
                                kv.k.heads,
                                ones(),
                                ones()};
  const cuda::AttentionOptions options{params.scale, params.window, params.logit_softcap, params.sinks};
  const cuda::PrefillParams<Kv> prefill{Row<const bf16>(q), Row<bf16>(out), nullptr, q.row_stride, out.row_stride,
                                        work.tiles,         step.row_start, cache,   options,      q_heads};
  constexpr size_t kRows = cuda::kRowsPerWarp;
  const cuda::DecodeParams<Kv> decode{Row<const bf16>(q),
                                      Row<bf16>(out),
                                      nullptr,
                                      q.row_stride,
                                      out.row_stride,
                                      step.row_start,
                                      nullptr,
                                      work.decode,
                                      partial_o_.Room<float>(work.partials * kRows * kv.k.dim),
                                      partial_ml_.Room<float>(work.partials * kRows * 2),
                                      cache,
                                      options,
                                      q_heads};
  auto launch_form = [&]<int kDim, bool kFixed>() {
    cuda::LaunchPrefillAttention<Kv, kDim, kFixed>(stream_, prefill, work.tile_count, false);
    if (work.decode_items > 0) cuda::LaunchDecodeAttention<Kv, kDim, kFixed>(stream_, decode, blocks, false);
  };
  auto launch = [&]<int kDim>(std::integral_constant<int, kDim>) {
    if (deterministic_)
      launch_form.template operator()<kDim, true>();
    else
      launch_form.template operator()<kDim, false>();
  };
  switch (kv.k.dim) {
#define BATON_CASE(dim) \
  case dim: return launch(std::integral_constant<int, dim>{});
    BATON_FOR_HEAD_DIMS(BATON_CASE)
#undef BATON_CASE
    default: BATON_CHECK(false, "head_dim ", kv.k.dim);
  }
}

void CudaOps::Attention(const Tensor& q, const RaggedBatch& batch, const KvLayerView& kv, const AttentionParams& params,
                        const Tensor& out) {
  BATON_CHECK(q.cols() == out.cols() && q.rows() == out.rows() && q.cols() % kv.k.dim == 0 &&
              q.cols() / kv.k.dim % kv.k.heads == 0);
  if (traits_.kv == DType::kBF16)
    Attend<bf16>(q, batch, kv, params, out);
  else
    Attend<e4m3>(q, batch, kv, params, out);
}

void CudaOps::CopyBlocks(std::span<const int32_t> src, std::span<const int32_t> dst, const KvLayerView& kv) {
  BATON_CHECK(src.size() == dst.size());
  std::vector<int32_t> pairs;
  for (size_t i = 0; i < src.size(); ++i) pairs.insert(pairs.end(), {src[i], dst[i]});
  const int32_t* on_device = ids_.Upload(std::span<const int32_t>(pairs));
  for (const KvPlaneView* plane : {&kv.k, &kv.v}) {
    const int64_t bytes = static_cast<int64_t>(plane->tokens_per_block) * plane->heads * plane->dim *
                          static_cast<int64_t>(DTypeBytes(plane->dtype));
    cuda::LaunchCopyBlocks(stream_, {static_cast<unsigned char*>(plane->base), plane->block_stride_bytes, bytes,
                                     plane->digests, plane->digest_block_stride, on_device, Int(src.size()),
                                     plane->tokens_per_block / kUnitTokens * plane->heads});
  }
}

// ---- logits

std::vector<SampleResult> CudaOps::Sample(const Tensor& logits, std::span<const SampleRow> rows) {
  BATON_CHECK(logits.rows() == static_cast<int64_t>(rows.size()) && logits.dtype == DType::kF32);
  return cuda::RunSample(stream_, sample_, logits, cuda::PlanSample(rows, Int(logits.cols())));
}

std::vector<SampleResult> CudaOps::Logprobs(const Tensor& logits, std::span<const int32_t> targets, int32_t k) {
  BATON_CHECK(logits.rows() == static_cast<int64_t>(targets.size()) && logits.dtype == DType::kF32 &&
              k <= cuda::kMaxTopLogprobs);
  cuda::SampleLists lists;
  for (int32_t target : targets) {
    BATON_CHECK(target >= 0 && target < logits.cols(), "target ", target, " of ", logits.cols());
    cuda::SampleRowParams row{};
    row.mask_offset = -1;
    row.num_logprobs = std::max(k, 0);
    row.target = target;
    lists.rows.push_back(row);
  }
  return cuda::RunSample(stream_, sample_, logits, lists);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(const CudaOpsConfig& config) {
  if (config.kv_dtype != DType::kBF16 && config.kv_dtype != DType::kF8E4M3) {
    return absl::FailedPreconditionError(
        StrCat("the GPU keeps KV in bfloat16 or fp8_e4m3, not in ", DTypeName(config.kv_dtype)));
  }
  return std::make_unique<CudaOps>(config);
}

}  // namespace baton::kernels
