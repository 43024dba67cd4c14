#include "kernels/cpu/cpu_ops.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/kv_digest.h"
#include "common/kv_layout.h"
#include "common/status.h"
#include "kernels/cpu/bf16_panels.h"
#include "kernels/cpu/bf16_slices.h"
#include "kernels/cpu/cpu_choice.h"
#include "kernels/cpu/cpu_memory.h"
#include "kernels/cpu/experts.h"
#include "kernels/cpu/isa/bf16_table.h"
#include "kernels/cpu/isa/kernel_table.h"
#include "kernels/cpu/latent_attention.h"
#include "kernels/cpu/packed_panels.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/rope_table.h"
#include "kernels/cpu/rounded_linear.h"
#include "kernels/cpu/sampler.h"

namespace baton::kernels {
namespace cpu {
namespace {

constexpr int kMaxHeadDim = 256;
constexpr uint32_t kPlaneK = 0, kPlaneV = 1;  // order of the planes in a KV group

char* RowOf(const Tensor& t, int64_t row) {
  return static_cast<char*>(t.data) + row * t.row_stride * static_cast<int64_t>(DTypeBytes(t.dtype));
}

char* SlotOf(const KvPlaneView& plane, int32_t block, int slot, int head) {
  const int64_t element = (static_cast<int64_t>(slot) * plane.heads + head) * plane.dim;
  return static_cast<char*>(plane.base) + block * plane.block_stride_bytes +
         element * static_cast<int64_t>(DTypeBytes(plane.dtype));
}

// What a plane's numbers are multiplied with when they are read, and when they are written.
float LoadFactor(const KvPlaneView& plane) { return plane.dtype == DType::kF8E4M3 ? plane.scale : 1.0f; }
float StoreFactor(const KvPlaneView& plane) { return 1.0f / LoadFactor(plane); }

// Where every row of a ragged step belongs.
struct RowPlace {
  int32_t sequence = 0;
  int32_t position = 0;
};

// Consecutive rows of one sequence.
struct RowPiece {
  int sequence = 0;
  int32_t first_row = 0;
  int rows = 0;
};

class CpuOps final : public Ops {
 public:
  /// `bf16`: null, or what multiplies in bf16; `kernels` may be its own then.
  CpuOps(const KernelTable& kernels, const Bf16Table* bf16, int threads, OpsTraits traits)
      : kernels_(kernels), bf16_(bf16), traits_(std::move(traits)), pool_(threads) {
    traits_.threads = threads;
  }

  const OpsTraits& traits() const override { return traits_; }
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) override { return AllocateHost(bytes); }
  void CopyToDevice(void* dst, const void* src, size_t bytes) override { std::memcpy(dst, src, bytes); }
  void CopyToHost(void* dst, const void* src, size_t bytes) override { std::memcpy(dst, src, bytes); }
  void Sync() override {}

  absl::StatusOr<std::unique_ptr<PackedLinear>> Pack(const Tensor& weight, const float* bias) override {
    if (bf16_ != nullptr) return Bf16Panels::Make(weight, bias, *bf16_, pool_);
    if (traits_.compute == DType::kBF16) return Bf16Slices::Make(weight, bias, kernels_, bf16_products_, pool_);
    return PackedPanels::Make(weight, bias, pool_);
  }
  absl::StatusOr<std::unique_ptr<PackedLinear>> PackQuantized(const QuantizedWeight& weight,
                                                              const float* bias) override;
  absl::StatusOr<std::unique_ptr<PackedExperts>> PackExperts(const Tensor& weights, const float* biases) override {
    return CpuExperts::Make(*this, weights, biases);
  }

  void Embedding(std::span<const int32_t> ids, const Tensor& table, float scale, const Tensor& out) override;
  void EmbeddingOfPacked(std::span<const int32_t> ids, const PackedLinear& table, float scale,
                         const Tensor& out) override;
  void RmsNorm(const Tensor& x, const float* weight, float weight_offset, float eps, const Tensor& out) override;
  void AddRmsNorm(const Tensor& x, const Tensor& residual, const float* weight, float weight_offset, float eps,
                  const Tensor& out) override;
  void Add(const Tensor& x, const Tensor& residual) override;
  void Linear(const Tensor& x, const PackedLinear& w, const Tensor& out) override;
  void GatedActivation(Activation act, const Tensor& gate_up, const Tensor& out) override;
  void GatherRows(const Tensor& x, std::span<const int32_t> rows, const Tensor& out) override;
  void NormRopeAndWriteKv(const Tensor& q, const Tensor& k, const Tensor& v, const float* q_norm, const float* k_norm,
                          float norm_offset, float norm_eps, const RopeParams& rope, const RaggedBatch& batch,
                          const KvLayerView& kv) override;
  void Attention(const Tensor& q, const RaggedBatch& batch, const KvLayerView& kv, const AttentionParams& params,
                 const Tensor& out) override;
  void LatentAttention(const Tensor& q, const RaggedBatch& batch, const KvPlaneView& latents,
                       const AttentionParams& params, const Tensor& out) override {
    cpu::LatentAttention(kernels_, pool_, q, batch, latents, params, out);
  }
  void RouteTokens(const Tensor& logits, bool renormalize, const MoeRoutes& routes) override {
    cpu::RouteTokens(logits, renormalize, routes);
  }
  void ExpertLinear(const Tensor& x, bool by_row, const MoeRoutes& routes, const PackedExperts& w,
                    const Tensor& out) override {
    cpu::ExpertLinear(*this, x, by_row, routes, static_cast<const CpuExperts&>(w), out, expert_rows_);
  }
  void CombineExperts(const Tensor& y, const MoeRoutes& routes, const Tensor& out) override {
    cpu::CombineExperts(kernels_, y, routes, out);
  }
  void CopyBlocks(std::span<const int32_t> src, std::span<const int32_t> dst, const KvLayerView& kv) override;
  void SoftCap(float cap, const Tensor& x) override;
  std::vector<SampleResult> Sample(const Tensor& logits, std::span<const SampleRow> rows) override;
  std::unique_ptr<Draw> BeginSample(const Tensor& logits, std::span<const SampleRow> rows) override;
  std::vector<SampleResult> Logprobs(const Tensor& logits, std::span<const int32_t> targets, int32_t k) override;

 private:
  int32_t IdOf(int32_t id, int64_t vocab) const;
  // Calls work(row) for every row; rows are handed out in runs worth `grain` elements or more.
  template <class Work>
  void ForRows(int64_t rows, int64_t columns, Work work) {
    const int64_t run = std::max<int64_t>(1, 8192 / std::max<int64_t>(columns, 1));
    pool_.Run((rows + run - 1) / run, [&](int64_t i) {
      for (int64_t r = i * run; r < std::min(rows, (i + 1) * run); ++r) work(r);
    });
  }
  void PlaceRows(const RaggedBatch& batch);
  void AddDigests(const RaggedBatch& batch, const KvPlaneView& plane, size_t first);

  const KernelTable& kernels_;
  const Bf16Table* bf16_;
  OpsTraits traits_;
  Pool pool_;
  RopeTable rope_;
  Bf16Products bf16_products_;
  AlignedVector<uint16_t> bf16_rows_;  // what Linear reads
  AlignedVector<char> rounded_rows_;   // what Linear reads of a weight that rounds its inputs
  std::vector<char> expert_rows_;      // what one expert reads
  std::vector<RowPlace> places_;       // of the step's rows
  std::vector<RowPiece> pieces_;       // of the step's rows, as attention cuts them
  std::vector<uint64_t> digests_;      // [2, T, kv_heads] of the tokens just written
  std::vector<int32_t> drawn_;         // by the last BeginSample
};

// `id`, or the drawn token that it stands for.
int32_t CpuOps::IdOf(int32_t id, int64_t vocab) const {
  if (id < 0 && ~id < static_cast<int64_t>(drawn_.size())) return drawn_[static_cast<size_t>(~id)];
  BATON_CHECK(id >= 0 && id < vocab, "token ", id, " of a vocabulary of ", vocab, ", ", drawn_.size(), " are drawn");
  return id;
}

void CpuOps::Embedding(std::span<const int32_t> ids, const Tensor& table, float scale, const Tensor& out) {
  const int n = static_cast<int>(table.cols());
  BATON_CHECK(out.rows() == static_cast<int64_t>(ids.size()) && out.cols() == n && out.dtype == DType::kF32);
  ForRows(out.rows(), n, [&](int64_t r) {
    kernels_.convert(RowOf(table, IdOf(ids[r], table.rows())), table.dtype, scale, RowOf(out, r), out.dtype, n);
  });
}

void CpuOps::EmbeddingOfPacked(std::span<const int32_t> ids, const PackedLinear& table, float scale,
                               const Tensor& out) {
  const int n = static_cast<int>(table.in_features());
  BATON_CHECK(traits_.packed_rows && out.rows() == static_cast<int64_t>(ids.size()) && out.cols() == n &&
              out.dtype == DType::kF32);
  ForRows(out.rows(), n, [&](int64_t r) {
    thread_local AlignedVector<float> row;  // of the widest type
    const int32_t id = IdOf(ids[r], table.out_features());
    row.resize(static_cast<size_t>(n));
    DType dtype = DType::kBF16;
    if (bf16_ != nullptr) {
      static_cast<const Bf16Panels&>(table).CopyRow(id, reinterpret_cast<uint16_t*>(row.data()));
    } else {
      static_cast<const PackedPanels&>(table).CopyRow(id, row.data());
      dtype = static_cast<const PackedPanels&>(table).dtype();
    }
    kernels_.convert(row.data(), dtype, scale, RowOf(out, r), out.dtype, n);
  });
}

void CpuOps::RmsNorm(const Tensor& x, const float* weight, float weight_offset, float eps, const Tensor& out) {
  BATON_CHECK(x.dtype == DType::kF32 && x.rows() == out.rows() && x.cols() == out.cols());
  ForRows(x.rows(), x.cols(), [&](int64_t r) {
    kernels_.rms_norm(reinterpret_cast<float*>(RowOf(x, r)), weight, weight_offset, eps, static_cast<int>(x.cols()),
                      RowOf(out, r), out.dtype);
  });
}

void CpuOps::AddRmsNorm(const Tensor& x, const Tensor& residual, const float* weight, float weight_offset, float eps,
                        const Tensor& out) {
  BATON_CHECK(residual.dtype == DType::kF32 && x.rows() == residual.rows() && x.cols() == residual.cols() &&
              x.rows() == out.rows() && x.cols() == out.cols());
  const int n = static_cast<int>(x.cols());
  ForRows(x.rows(), n, [&](int64_t r) {
    float* sum = reinterpret_cast<float*>(RowOf(residual, r));
    kernels_.add(RowOf(x, r), x.dtype, sum, n);
    kernels_.rms_norm(sum, weight, weight_offset, eps, n, RowOf(out, r), out.dtype);
  });
}

void CpuOps::Add(const Tensor& x, const Tensor& residual) {
  BATON_CHECK(residual.dtype == DType::kF32 && x.rows() == residual.rows() && x.cols() == residual.cols());
  ForRows(x.rows(), x.cols(), [&](int64_t r) {
    kernels_.add(RowOf(x, r), x.dtype, reinterpret_cast<float*>(RowOf(residual, r)), static_cast<int>(x.cols()));
  });
}

absl::StatusOr<std::unique_ptr<PackedLinear>> CpuOps::PackQuantized(const QuantizedWeight& weight, const float* bias) {
  if (!weight.rounding) return Ops::PackQuantized(weight, bias);
  std::unique_ptr<PackedLinear> inner;
  if (traits_.compute == DType::kBF16) {
    std::vector<uint16_t> rows = DequantizedBf16(weight);
    BATON_ASSIGN_OR_RETURN(inner, Pack(Tensor(rows.data(), DType::kBF16, {weight.n, weight.k}), bias));
  } else {
    std::vector<float> rows = DequantizedF32(weight);
    BATON_ASSIGN_OR_RETURN(inner, Pack(Tensor(rows.data(), DType::kF32, {weight.n, weight.k}), bias));
  }
  return std::make_unique<RoundedLinear>(std::move(inner), weight.rounding, weight.group);
}

void CpuOps::Linear(const Tensor& x, const PackedLinear& weight, const Tensor& out) {
  if (weight.rounds_inputs()) {
    const auto& rounded = static_cast<const RoundedLinear&>(weight);
    return Linear(rounded.Round(x, pool_, rounded_rows_), rounded.inner(), out);
  }
  if (bf16_ != nullptr) return static_cast<const Bf16Panels&>(weight).Run(x, out, *bf16_, pool_, bf16_rows_);
  if (traits_.compute == DType::kBF16) {
    return static_cast<const Bf16Slices&>(weight).Run(x, out, kernels_, pool_, bf16_rows_);
  }
  const auto& w = static_cast<const PackedPanels&>(weight);
  BATON_CHECK(
      x.dtype == DType::kF32 && x.cols() == w.in_features() && out.cols() == w.out_features() && x.rows() == out.rows(),
      "x [", x.rows(), ", ", x.cols(), "], weight [", w.out_features(), ", ", w.in_features(), "], out [", out.rows(),
      ", ", out.cols(), "]");
  const int64_t rows = x.rows();
  const int64_t row_blocks = (rows + kLinearRows - 1) / kLinearRows;
  // Panels outermost: the threads share the rows and stream different weights.
  pool_.Run(w.panels() * row_blocks, [&](int64_t item) {
    const int64_t panel = item / row_blocks, first = item % row_blocks * kLinearRows;
    const int count = static_cast<int>(std::min<int64_t>(kLinearRows, rows - first));
    char* to = RowOf(out, first) + panel * kPanelColumns * static_cast<int64_t>(DTypeBytes(out.dtype));
    kernels_.linear_panel(reinterpret_cast<const float*>(RowOf(x, first)), x.row_stride, count, w.Panel(panel),
                          w.dtype(), w.in_features(), w.Bias(panel), w.ColumnsOf(panel), to, out.dtype, out.row_stride);
  });
}

void CpuOps::GatedActivation(Activation act, const Tensor& gate_up, const Tensor& out) {
  BATON_CHECK(gate_up.cols() == 2 * out.cols() && gate_up.rows() == out.rows() && gate_up.dtype == out.dtype);
  ForRows(out.rows(), out.cols(), [&](int64_t r) {
    kernels_.gated(act, RowOf(gate_up, r), gate_up.dtype, static_cast<int>(out.cols()), RowOf(out, r));
  });
}

void CpuOps::GatherRows(const Tensor& x, std::span<const int32_t> rows, const Tensor& out) {
  BATON_CHECK(out.rows() == static_cast<int64_t>(rows.size()) && out.cols() == x.cols() && out.dtype == x.dtype);
  const size_t bytes = static_cast<size_t>(x.cols()) * DTypeBytes(x.dtype);
  for (size_t i = 0; i < rows.size(); ++i) {
    BATON_CHECK(rows[i] >= 0 && rows[i] < x.rows(), "row ", rows[i], " of ", x.rows());
    std::memcpy(RowOf(out, static_cast<int64_t>(i)), RowOf(x, rows[i]), bytes);
  }
}

void CpuOps::PlaceRows(const RaggedBatch& batch) {
  places_.clear();
  for (int s = 0; s < batch.sequences(); ++s) {
    for (int32_t r = batch.row_start[s]; r < batch.row_start[s + 1]; ++r) {
      places_.push_back({s, batch.context[s] + r - batch.row_start[s]});
    }
  }
}

void CpuOps::NormRopeAndWriteKv(const Tensor& q, const Tensor& k, const Tensor& v, const float* q_norm,
                                const float* k_norm, float norm_offset, float norm_eps, const RopeParams& rope,
                                const RaggedBatch& batch, const KvLayerView& kv) {
  const int dim = kv.k.dim, kv_heads = kv.k.heads, q_heads = static_cast<int>(q.cols() / dim);
  BATON_CHECK(q.cols() % dim == 0 && k.cols() == static_cast<int64_t>(kv_heads) * dim &&
              v.cols() == static_cast<int64_t>(kv_heads) * kv.v.dim && dim <= kMaxHeadDim && kv.v.dim <= kMaxHeadDim &&
              rope.rotary_dim <= dim);
  PlaceRows(batch);
  const int64_t rows = static_cast<int64_t>(places_.size());
  BATON_CHECK(q.rows() == rows && k.rows() == rows && v.rows() == rows, "q of ", q.rows(), " rows, batch of ", rows);
  int32_t last = 0;
  for (const RowPlace& p : places_) last = std::max(last, p.position);
  const RopeTable::Rows angles = rope_.Get(rope, last + 1);
  const int half = rope.rotary_dim / 2;
  const bool keep_digests = kv.k.digests != nullptr;
  digests_.assign(keep_digests ? static_cast<size_t>(2 * rows * kv_heads) : 0, 0);
  const int64_t element = static_cast<int64_t>(DTypeBytes(q.dtype));
  ForRows(rows, q.cols() + k.cols() + v.cols(), [&](int64_t r) {
    const RowPlace place = places_[r];
    const float* cosines = angles.cosines + static_cast<int64_t>(place.position) * half;
    const float* sines = angles.sines + static_cast<int64_t>(place.position) * half;
    for (int h = 0; h < q_heads; ++h) {
      kernels_.norm_rope(RowOf(q, r) + h * dim * element, q.dtype, dim, q_norm, norm_offset, norm_eps, cosines, sines,
                         rope.rotary_dim);
    }
    const int32_t block =
        batch.block_tables[place.sequence * batch.table_stride + place.position / kv.k.tokens_per_block];
    const int slot = place.position % kv.k.tokens_per_block;
    for (int h = 0; h < kv_heads; ++h) {
      alignas(64) char head[kMaxHeadDim * sizeof(float)];
      std::memcpy(head, RowOf(k, r) + h * dim * element, static_cast<size_t>(dim * element));
      kernels_.norm_rope(head, k.dtype, dim, k_norm, norm_offset, norm_eps, cosines, sines, rope.rotary_dim);
      kernels_.convert(head, k.dtype, StoreFactor(kv.k), SlotOf(kv.k, block, slot, h), kv.k.dtype, dim);
      kernels_.convert(RowOf(v, r) + h * kv.v.dim * element, v.dtype, StoreFactor(kv.v), SlotOf(kv.v, block, slot, h),
                       kv.v.dtype, kv.v.dim);
      if (!keep_digests) continue;
      const uint32_t global_head = kv.first_head + static_cast<uint32_t>(h),
                     token = static_cast<uint32_t>(place.position);
      digests_[r * kv_heads + h] = KvDigestVector({kv.layer, kPlaneK, global_head, token}, SlotOf(kv.k, block, slot, h),
                                                  static_cast<uint32_t>(dim * DTypeBytes(kv.k.dtype)));
      digests_[(rows + r) * kv_heads + h] =
          KvDigestVector({kv.layer, kPlaneV, global_head, token}, SlotOf(kv.v, block, slot, h),
                         static_cast<uint32_t>(kv.v.dim * DTypeBytes(kv.v.dtype)));
    }
  });
  if (!keep_digests) return;
  AddDigests(batch, kv.k, 0);
  AddDigests(batch, kv.v, static_cast<size_t>(rows * kv_heads));
}

// A unit's tokens may come in one step on several threads, so their sums are taken here, in order.
void CpuOps::AddDigests(const RaggedBatch& batch, const KvPlaneView& plane, size_t first) {
  for (size_t r = 0; r < places_.size(); ++r) {
    const RowPlace place = places_[r];
    const int32_t block =
        batch.block_tables[place.sequence * batch.table_stride + place.position / plane.tokens_per_block];
    const int unit = place.position % plane.tokens_per_block / kUnitTokens;
    uint64_t* to = plane.digests + block * plane.digest_block_stride + unit * plane.heads;
    const uint64_t* from = digests_.data() + first + r * static_cast<size_t>(plane.heads);
    const bool begins = place.position % kUnitTokens == 0;
    for (int h = 0; h < plane.heads; ++h) to[h] = begins ? from[h] : to[h] + from[h];
  }
}

void CpuOps::Attention(const Tensor& q, const RaggedBatch& batch, const KvLayerView& kv, const AttentionParams& params,
                       const Tensor& out) {
  const int dim = kv.k.dim, kv_heads = kv.k.heads, group = static_cast<int>(q.cols() / dim) / kv_heads;
  BATON_CHECK(q.cols() == static_cast<int64_t>(group) * kv_heads * dim && out.cols() == q.cols() &&
              q.rows() == out.rows() && q.rows() == batch.row_start.back() && dim == kv.v.dim && dim % 8 == 0 &&
              dim <= kMaxHeadDim && q.dtype == out.dtype && q.dtype == traits_.compute && kv.k.dtype == traits_.kv &&
              kv.v.dtype == traits_.kv);
  const int most = kernels_.attention_rows, heads = std::min(group, most), head_parts = (group + heads - 1) / heads;
  const int rows = std::max(1, most / heads);
  pieces_.clear();
  for (int s = 0; s < batch.sequences(); ++s) {
    for (int32_t r = batch.row_start[s]; r < batch.row_start[s + 1]; r += rows)
      pieces_.push_back({s, r, std::min(rows, batch.row_start[s + 1] - r)});
  }
  const int64_t element = static_cast<int64_t>(DTypeBytes(q.dtype));
  const int64_t per_piece = static_cast<int64_t>(kv_heads) * head_parts;
  auto attend = [&](int64_t i) {
    const RowPiece& piece = pieces_[static_cast<size_t>(i / per_piece)];
    const int kv_head = static_cast<int>(i % per_piece) / head_parts, first = static_cast<int>(i % head_parts) * heads;
    const int64_t column = (static_cast<int64_t>(kv_head) * group + first) * dim * element;
    AttentionItem item;
    item.q = RowOf(q, piece.first_row) + column;
    item.out = RowOf(out, piece.first_row) + column;
    item.q_row_bytes = q.row_stride * element;
    item.out_row_bytes = out.row_stride * element;
    item.dtype = q.dtype;
    item.rows = piece.rows;
    item.heads = std::min(heads, group - first);
    item.first_position = batch.context[piece.sequence] + piece.first_row - batch.row_start[piece.sequence];
    item.k = &kv.k;
    item.v = &kv.v;
    item.blocks = batch.block_tables.data() + piece.sequence * batch.table_stride;
    item.kv_head = kv_head;
    item.window = params.window;
    item.scale = params.scale * LoadFactor(kv.k);
    item.v_scale = LoadFactor(kv.v);
    item.softcap = params.logit_softcap;
    item.sinks = params.sinks != nullptr ? params.sinks + kv_head * group + first : nullptr;
    kernels_.attention(item);
  };
  // Where there are pieces enough, a thread takes all heads of one: a token's heads lie side by side in memory.
  const int64_t items = static_cast<int64_t>(pieces_.size()) * per_piece;
  const int64_t run = static_cast<int64_t>(pieces_.size()) >= 4 * traits_.threads ? per_piece : 1;
  pool_.Run(items / run, [&](int64_t i) {
    for (int64_t j = i * run; j < (i + 1) * run; ++j) attend(j);
  });
}

void CpuOps::CopyBlocks(std::span<const int32_t> src, std::span<const int32_t> dst, const KvLayerView& kv) {
  BATON_CHECK(src.size() == dst.size());
  for (const KvPlaneView* plane : {&kv.k, &kv.v}) {
    const size_t bytes =
        static_cast<size_t>(plane->tokens_per_block) * plane->heads * plane->dim * DTypeBytes(plane->dtype);
    const int64_t digests = plane->tokens_per_block / kUnitTokens * plane->heads;
    for (size_t i = 0; i < src.size(); ++i) {
      std::memcpy(SlotOf(*plane, dst[i], 0, 0), SlotOf(*plane, src[i], 0, 0), bytes);
      if (plane->digests == nullptr) continue;
      std::copy_n(plane->digests + src[i] * plane->digest_block_stride, digests,
                  plane->digests + dst[i] * plane->digest_block_stride);
    }
  }
}

void CpuOps::SoftCap(float cap, const Tensor& x) {
  BATON_CHECK(x.dtype == DType::kF32 && cap > 0);
  ForRows(x.rows(), x.cols(),
          [&](int64_t r) { kernels_.soft_cap(cap, reinterpret_cast<float*>(RowOf(x, r)), x.cols()); });
}

std::vector<SampleResult> CpuOps::Sample(const Tensor& logits, std::span<const SampleRow> rows) {
  BATON_CHECK(logits.rows() == static_cast<int64_t>(rows.size()) && logits.dtype == DType::kF32);
  std::vector<SampleResult> results(rows.size());
  pool_.Run(logits.rows(), [&](int64_t r) {
    thread_local SamplerScratch scratch;
    std::span<float> row(reinterpret_cast<float*>(RowOf(logits, r)), static_cast<size_t>(logits.cols()));
    results[r] = SampleToken(kernels_, row, rows[r], scratch);
  });
  return results;
}

std::unique_ptr<Draw> CpuOps::BeginSample(const Tensor& logits, std::span<const SampleRow> rows) {
  std::vector<SampleResult> results = Sample(logits, rows);
  drawn_.clear();
  for (const SampleResult& result : results) drawn_.push_back(result.token);
  return std::make_unique<ReadyDraw>(std::move(results));
}

std::vector<SampleResult> CpuOps::Logprobs(const Tensor& logits, std::span<const int32_t> targets, int32_t k) {
  BATON_CHECK(logits.rows() == static_cast<int64_t>(targets.size()) && logits.dtype == DType::kF32);
  std::vector<SampleResult> results(targets.size());
  pool_.Run(logits.rows(), [&](int64_t r) {
    thread_local SamplerScratch scratch;
    std::span<const float> row(reinterpret_cast<float*>(RowOf(logits, r)), static_cast<size_t>(logits.cols()));
    results[r] = LogprobsOf(kernels_, row, targets[r], k, scratch);
  });
  return results;
}

}  // namespace
}  // namespace cpu

absl::StatusOr<std::unique_ptr<Ops>> MakeCpuOps(const CpuOpsConfig& config) {
  if (config.threads < 1) return absl::InvalidArgumentError(StrCat("threads must be at least 1, not ", config.threads));
  BATON_ASSIGN_OR_RETURN(cpu::CpuChoice choice, cpu::ChooseCpu(config));
  return std::make_unique<cpu::CpuOps>(*choice.kernels, choice.bf16, config.threads, std::move(choice.traits));
}

}  // namespace baton::kernels
