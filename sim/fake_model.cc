#include "sim/fake_model.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "common/check.h"
#include "common/half.h"
#include "common/kv_digest.h"

namespace baton::engine {
namespace {

using kernels::SampleResult;
using kernels::SampleRow;
using kernels::Tensor;

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9E3779B97F4A7C15ull + b + 0x7F4A7C15ull;
  x ^= x >> 31;
  x *= 0xD6E8FEB86659FD93ull;
  return x ^ (x >> 29);
}

class HostBuffer final : public kernels::Buffer {
 public:
  /// Straight from the kernel: what is not used is not there. An allocator would write zeros over pages it had before.
  explicit HostBuffer(size_t bytes)
      : memory_(
            mmap(nullptr, Mapped(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)),
        bytes_(bytes) {
    BATON_CHECK(memory_ != MAP_FAILED, "no ", bytes, " bytes for a simulated worker");
  }
  ~HostBuffer() override { munmap(memory_, Mapped(bytes_)); }
  void* data() const override { return memory_; }
  size_t bytes() const override { return bytes_; }

 private:
  static size_t Mapped(size_t bytes) { return std::max<size_t>(bytes, 1); }

  void* const memory_;
  const size_t bytes_;
};

SampleResult Score(std::span<const float> logits, int32_t token, int32_t k) {
  SampleResult r;
  r.token = token;
  if (k < 0) return r;
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  const auto rank = std::count_if(order.begin(), order.end(), [&](int32_t t) { return before(t, token); }) + 1;
  const auto listed = std::min<std::ptrdiff_t>(k, std::ssize(order));
  std::partial_sort(order.begin(), order.begin() + listed, order.end(), before);
  double sum = 0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l));
  const auto logprob = [&](int32_t t) { return static_cast<float>(logits[t] - std::log(sum)); };
  r.chosen = {token, logprob(token), static_cast<int32_t>(rank)};
  for (int32_t i = 0; i < listed; ++i) {
    r.top.push_back({order[static_cast<size_t>(i)], logprob(order[static_cast<size_t>(i)]), i + 1});
  }
  return r;
}

// Every field changes the draw; the order of fields is ops.h's, top-k and top-p are left to CpuOps' own tests.
SampleResult Draw(std::span<const float> raw, const SampleRow& row) {
  std::vector<double> l(raw.begin(), raw.end());
  const double never = -1e30;
  if (!row.allowed_tokens.empty()) {
    for (int32_t t = 0; t < static_cast<int32_t>(l.size()); ++t) {
      if (std::find(row.allowed_tokens.begin(), row.allowed_tokens.end(), t) == row.allowed_tokens.end()) l[t] = never;
    }
  }
  for (const auto& [t, bias] : row.logit_bias) l[static_cast<size_t>(t)] += bias;
  for (const int32_t t : row.banned_tokens) l[static_cast<size_t>(t)] = never;
  const float repeated = std::log(row.repetition_penalty) / 4;
  for (const auto& seen : {row.prompt_tokens, row.output_tokens}) {
    for (const int32_t t : seen) l[static_cast<size_t>(t)] -= repeated;
  }
  std::vector<bool> said(l.size());
  for (const int32_t t : row.output_tokens) {
    l[static_cast<size_t>(t)] -= row.frequency_penalty;
    said[static_cast<size_t>(t)] = true;
  }
  for (size_t t = 0; t < l.size(); ++t) {
    if (said[t]) l[t] -= row.presence_penalty;
  }
  for (size_t t = 0; row.grammar_mask != nullptr && t < l.size(); ++t) {
    if ((row.grammar_mask[t / 32] >> (t % 32) & 1) == 0) l[t] = never;
  }
  if (row.temperature > 0) {
    for (size_t t = 0; t < l.size(); ++t) {  // Gumbel noise keyed by (seed, index, position, token)
      const uint64_t bits = Mix(Mix(Mix(row.seed, row.sequence_index), row.position), t);
      const double u = (static_cast<double>(bits >> 11) + 0.5) / 9007199254740992.0;
      l[t] = l[t] / row.temperature - std::log(-std::log(u));
    }
  }
  return Score(raw, static_cast<int32_t>(std::max_element(l.begin(), l.end()) - l.begin()), row.num_logprobs);
}

/// Dies when more than two are begun and not taken, or when they are taken in another order.
class LaterDraw final : public kernels::Draw {
 public:
  struct Counts {
    int64_t begun = 0, taken = 0;
  };
  LaterDraw(std::vector<SampleResult> results, FakeModel& device, Counts& counts)
      : results_(std::move(results)), device_(device), steps_(device.steps), counts_(counts), number_(counts.begun++) {
    BATON_CHECK(counts_.begun - counts_.taken <= 2, counts_.begun, " draws are begun, ", counts_.taken, " taken");
  }
  bool ready() const override { return false; }
  std::vector<SampleResult> Take() override {
    BATON_CHECK(number_ == counts_.taken++, "draw ", number_, " is taken as number ", counts_.taken - 1);
    if (device_.on_wait) device_.on_wait(steps_);
    return std::move(results_);
  }

 private:
  std::vector<SampleResult> results_;
  const FakeModel& device_;
  const int64_t steps_;
  Counts& counts_;
  const int64_t number_;
};

class FakeOps final : public kernels::Ops {
 public:
  FakeOps(std::function<void(const SampleRow&)> on_sample, FakeModel* device)
      : on_sample_(std::move(on_sample)), device_(device) {}
  const kernels::OpsTraits& traits() const override { return traits_; }
  absl::StatusOr<std::unique_ptr<kernels::Buffer>> Allocate(size_t bytes) override {
    return std::make_unique<HostBuffer>(bytes);
  }
  void CopyToDevice(void* dst, const void* src, size_t bytes) override { std::memcpy(dst, src, bytes); }
  void CopyToHost(void* dst, const void* src, size_t bytes) override { std::memcpy(dst, src, bytes); }
  void Sync() override {
    if (device_ != nullptr && device_->on_wait) device_->on_wait(device_->steps);
  }
  absl::StatusOr<std::unique_ptr<kernels::PackedLinear>> Pack(const Tensor&, const float*) override { return Dies(); }
  void Embedding(std::span<const int32_t>, const Tensor&, float, const Tensor&) override { Dies().IgnoreError(); }
  void RmsNorm(const Tensor&, const float*, float, float, const Tensor&) override { Dies().IgnoreError(); }
  void AddRmsNorm(const Tensor&, const Tensor&, const float*, float, float, const Tensor&) override {
    Dies().IgnoreError();
  }
  void Add(const Tensor&, const Tensor&) override { Dies().IgnoreError(); }
  void Linear(const Tensor&, const kernels::PackedLinear&, const Tensor&) override { Dies().IgnoreError(); }
  void GatedActivation(kernels::Activation, const Tensor&, const Tensor&) override { Dies().IgnoreError(); }
  void GatherRows(const Tensor&, std::span<const int32_t>, const Tensor&) override { Dies().IgnoreError(); }
  void NormRopeAndWriteKv(const Tensor&, const Tensor&, const Tensor&, const float*, const float*, float, float,
                          const kernels::RopeParams&, const kernels::RaggedBatch&,
                          const kernels::KvLayerView&) override {
    Dies().IgnoreError();
  }
  void Attention(const Tensor&, const kernels::RaggedBatch&, const kernels::KvLayerView&,
                 const kernels::AttentionParams&, const Tensor&) override {
    Dies().IgnoreError();
  }
  void SoftCap(float, const Tensor&) override { Dies().IgnoreError(); }
  absl::StatusOr<std::unique_ptr<kernels::PackedExperts>> PackExperts(const Tensor&, const float*) override {
    return Dies();
  }
  void LatentAttention(const Tensor&, const kernels::RaggedBatch&, const kernels::KvPlaneView&,
                       const kernels::AttentionParams&, const Tensor&) override {
    Dies().IgnoreError();
  }
  void RouteTokens(const Tensor&, bool, const kernels::MoeRoutes&) override { Dies().IgnoreError(); }
  void ExpertLinear(const Tensor&, bool, const kernels::MoeRoutes&, const kernels::PackedExperts&,
                    const Tensor&) override {
    Dies().IgnoreError();
  }
  void CombineExperts(const Tensor&, const kernels::MoeRoutes&, const Tensor&) override { Dies().IgnoreError(); }

  void CopyBlocks(std::span<const int32_t> src, std::span<const int32_t> dst, const kernels::KvLayerView& kv) override {
    for (size_t i = 0; i < src.size(); ++i) {
      for (const kernels::KvPlaneView* p : {&kv.k, &kv.v}) {
        char* base = static_cast<char*>(p->base);
        std::memcpy(base + dst[i] * p->block_stride_bytes, base + src[i] * p->block_stride_bytes,
                    static_cast<size_t>(p->block_stride_bytes));
        std::memcpy(p->digests + dst[i] * p->digest_block_stride, p->digests + src[i] * p->digest_block_stride,
                    static_cast<size_t>(p->digest_block_stride) * 8);
      }
    }
  }
  std::vector<SampleResult> Sample(const Tensor& logits, std::span<const SampleRow> rows) override {
    Sync();
    return Drawn(logits, rows);
  }
  std::vector<SampleResult> Drawn(const Tensor& logits, std::span<const SampleRow> rows) const {
    std::vector<SampleResult> out;
    for (size_t r = 0; r < rows.size(); ++r) {
      if (on_sample_) on_sample_(rows[r]);
      SampleRow row = rows[r];
      std::vector<int32_t> output(row.output_tokens.begin(), row.output_tokens.end());
      if (row.unread_row >= 0) output.push_back(device_->taken.at(static_cast<size_t>(row.unread_row)));
      row.output_tokens = output;
      out.push_back(Draw(Row(logits, r), row));
    }
    return out;
  }
  std::unique_ptr<kernels::Draw> BeginSample(const Tensor& logits, std::span<const SampleRow> rows) override {
    if (device_ == nullptr) return Ops::BeginSample(logits, rows);
    std::vector<SampleResult> results = Drawn(logits, rows);
    device_->drawn.clear();
    for (const SampleResult& result : results) device_->drawn.push_back(result.token);
    return std::make_unique<LaterDraw>(std::move(results), *device_, draws_);
  }
  bool DrawsLater(std::span<const SampleRow>) const override { return device_ != nullptr; }
  std::vector<SampleResult> Logprobs(const Tensor& logits, std::span<const int32_t> targets, int32_t k) override {
    Sync();
    std::vector<SampleResult> out;
    for (size_t r = 0; r < targets.size(); ++r) out.push_back(Score(Row(logits, r), targets[r], k));
    return out;
  }

 private:
  static absl::Status Dies() {
    BATON_CHECK(false, "the fake model needs no such operation");
    return absl::OkStatus();
  }
  static std::span<const float> Row(const Tensor& logits, size_t r) {
    return {logits.Rows(static_cast<int64_t>(r), 1).Data<float>(), static_cast<size_t>(logits.cols())};
  }
  const std::function<void(const SampleRow&)> on_sample_;
  FakeModel* const device_;
  LaterDraw::Counts draws_;
  kernels::OpsTraits traits_;
};

// Where position `p` lies in a plane.
char* Slot(const kernels::KvPlaneView& plane, std::span<const int32_t> table, int32_t p) {
  const int32_t block = table[static_cast<size_t>(p / plane.tokens_per_block)];
  const auto bytes = static_cast<int64_t>(plane.dim) * (plane.dtype == DType::kF32 ? 4 : 2);
  return static_cast<char*>(plane.base) + block * plane.block_stride_bytes + p % plane.tokens_per_block * bytes;
}

constexpr int kRawDim = 2, kNumbersDim = 4;

uint64_t Read(const kernels::KvPlaneView& plane, std::span<const int32_t> table, int32_t p) {
  const char* at = Slot(plane, table, p);
  uint64_t value = 0;
  if (plane.dim == kRawDim) {
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  for (int i = 0; i < kNumbersDim; ++i) {
    const float number = plane.dtype == DType::kF32 ? reinterpret_cast<const float*>(at)[i]
                                                    : FloatOfBf16(reinterpret_cast<const uint16_t*>(at)[i]);
    value = value << 8 | static_cast<uint8_t>(number);
  }
  return value;
}

/// `coordinate`: of the value, among all of the model's.
void Write(const kernels::KvPlaneView& plane, KvCoordinate coordinate, std::span<const int32_t> table, uint64_t value) {
  const auto p = static_cast<int32_t>(coordinate.token);
  char* at = Slot(plane, table, p);
  if (plane.dim == kRawDim) std::memcpy(at, &value, sizeof(value));
  for (int i = 0; plane.dim == kNumbersDim && i < kNumbersDim; ++i) {
    const auto number = static_cast<float>(value >> 8 * i & 0xff);  // exact in bf16
    if (plane.dtype == DType::kF32) {
      reinterpret_cast<float*>(at)[i] = number;
    } else {
      reinterpret_cast<uint16_t*>(at)[i] = Bf16OfFloat(number);
    }
  }
  const size_t bytes = static_cast<size_t>(plane.dim) * (plane.dtype == DType::kF32 ? 4 : 2);
  const int32_t block = table[static_cast<size_t>(p / plane.tokens_per_block)];
  uint64_t& digest = plane.digests[block * plane.digest_block_stride + p % plane.tokens_per_block / kUnitTokens];
  const uint64_t d = KvDigestVector(coordinate, at, bytes);
  digest = p % kUnitTokens == 0 ? d : digest + d;
}

}  // namespace

std::unique_ptr<kernels::Ops> MakeFakeOps(std::function<void(const SampleRow&)> on_sample, FakeModel* device) {
  return std::make_unique<FakeOps>(std::move(on_sample), device);
}

KvLayout FakeLayout(int32_t tokens_per_block, int32_t window_tokens, std::optional<DType> dtype, int layers) {
  const DType type = dtype.value_or(DType::kF32);
  const int dim = dtype ? kNumbersDim : kRawDim;
  const std::vector<KvPlane> planes = {{KvPlane::Name::kK, type, 1, dim}, {KvPlane::Name::kV, type, 1, dim}};
  std::vector<int> paged(static_cast<size_t>(layers)), window(static_cast<size_t>(layers));
  std::iota(paged.begin(), paged.end(), 0);
  std::iota(window.begin(), window.end(), layers);
  KvLayout layout;
  layout.groups.push_back({paged, KvGroupKind::kPaged, 0, planes, tokens_per_block});
  if (window_tokens > 0)
    layout.groups.push_back({window, KvGroupKind::kWindow, window_tokens, planes, tokens_per_block});
  return layout;
}

FakeModel::FakeModel(KvLayout layout, uint64_t numerics, int heads)
    : layout_(std::move(layout)), numerics_(numerics), heads_(static_cast<uint32_t>(heads)) {
  config_.vocab_size = kFakeVocab;
  config_.max_position_embeddings = 4096;
}

int32_t FakeModel::TokenOf(const ForwardBatch& batch, int32_t row) const {
  const int32_t token = batch.tokens[static_cast<size_t>(row)];
  if (token >= 0) return token;
  BATON_CHECK(~token < batch.drawn_rows && ~token < static_cast<int32_t>(drawn.size()), "token ", token, ", ",
              drawn.size(), " are drawn");
  return drawn[static_cast<size_t>(~token)];
}

absl::StatusOr<Tensor> FakeModel::Forward(const ForwardBatch& batch, std::span<const KvGroupView> kv,
                                          const std::atomic<bool>& cancel) {
  ++steps;
  if (before_forward) {
    if (absl::Status s = before_forward(); !s.ok()) return s;
  }
  std::vector<uint64_t> hashes(batch.tokens.size(), 0);
  taken.clear();
  const kernels::RaggedBatch& any = batch.groups.front();
  for (int s = 0; s < any.sequences(); ++s) {
    if (s == (any.sequences() + 1) / 2 && cancel.load()) return absl::CancelledError("cancelled half way");
    for (int32_t row = any.row_start[s]; row < any.row_start[s + 1]; ++row) {
      const int32_t p = any.context[s] + row - any.row_start[s];
      for (size_t g = 0; g < batch.groups.size(); ++g) {
        const auto table = batch.groups[g].block_tables.subspan(static_cast<size_t>(s * batch.groups[g].table_stride),
                                                                static_cast<size_t>(batch.groups[g].table_stride));
        const uint64_t value = Mix(static_cast<uint64_t>(TokenOf(batch, row)) + numerics_, static_cast<uint64_t>(p));
        for (size_t l = 0; l < kv[g].layers.size(); ++l) {
          const kernels::KvLayerView& layer = kv[g].layers[l];
          const uint64_t own = l == 0 ? value : Mix(value, l);
          const auto at = [&](uint32_t plane) {
            return KvCoordinate{layer.layer / heads_, plane, layer.layer % heads_, static_cast<uint32_t>(p)};
          };
          Write(layer.k, at(0), table, own);
          Write(layer.v, at(1), table, ~own);
        }
        const int32_t window = layout_.groups[g].window_tokens;
        for (int32_t q = window > 0 ? std::max(0, p - window + 1) : 0; q <= p; ++q) {
          for (const kernels::KvLayerView& layer : kv[g].layers)
            hashes[row] = Mix(hashes[row] + Read(layer.k, table, q), Read(layer.v, table, q));
        }
      }
      ++rows_run;
      rows_named += batch.tokens[row] < 0;
      taken.push_back(TokenOf(batch, row));
    }
  }
  logits_.resize(batch.logit_rows.size() * kFakeVocab);
  for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
    for (int32_t t = 0; t < kFakeVocab; ++t) {
      const uint64_t bits = Mix(hashes[static_cast<size_t>(batch.logit_rows[i])], static_cast<uint64_t>(t));
      logits_[i * kFakeVocab + static_cast<size_t>(t)] = static_cast<float>(bits % 4096) / 1024.0f;
    }
  }
  return Tensor(logits_.data(), DType::kF32, {static_cast<int64_t>(batch.logit_rows.size()), kFakeVocab});
}

}  // namespace baton::engine
