#include "tests/kernels/contract/host_tensor_ops.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "common/device_failure.h"
#include "common/status.h"
#include "kernels/runtime/runtime.h"

namespace baton::kernels {
namespace {

/// What a call does with memory that it is given.
enum class Use {
  kRead,
  kWritten,
  kSpent,  ///< what is left of it nobody reads
};

/// The host's memory as calls of a device are given it.
class Mirrors {
 public:
  explicit Mirrors(Ops& ops) : ops_(ops) {}

  /// Null: there are no bytes.
  void* Of(const void* host, size_t bytes, Use use) {
    if (host == nullptr || bytes == 0) return nullptr;
    auto* const at = static_cast<char*>(const_cast<void*>(host));
    for (Mirror& mirror : mirrors_) {
      if (mirror.use != Use::kWritten || at >= mirror.host + mirror.bytes || mirror.host >= at + bytes) continue;
      if (at >= mirror.host && at + bytes <= mirror.host + mirror.bytes)
        return static_cast<char*>(mirror.there.data()) + (at - mirror.host);
      Return(mirror);
      mirror.use = Use::kSpent;
    }
    const Mirror& mirror = mirrors_.emplace_back(at, bytes, use);
    BATON_CHECK(mirror.there.data() != nullptr, "no ", bytes, " bytes of device memory");
    upload_.Upload(mirror.there.data(), mirror.sent.data(), mirror.sent.size());
    EndIfDeviceFailed(upload_.Synchronize());
    return mirror.there.data();
  }

  void ReturnAll() {
    for (const Mirror& mirror : mirrors_) Return(mirror);
    mirrors_.clear();
  }

 private:
  static constexpr size_t kBehind = 16;
  static constexpr char kFill = 0x5A;
  struct Mirror {
    Mirror(char* host, size_t bytes, Use use)
        : host(host), bytes(bytes), use(use), sent(host, host + bytes), there(bytes + kBehind) {
      sent.insert(sent.end(), kBehind, kFill);
    }
    char* host;
    size_t bytes;
    Use use;
    std::vector<char> sent;  ///< and what is behind
    gpu::Memory there;
  };

  void Return(const Mirror& mirror) const {
    std::vector<char> got(mirror.sent.size());
    ops_.CopyToHost(got.data(), mirror.there.data(), got.size());
    const auto behind = [&](const std::vector<char>& all) { return all.data() + mirror.bytes; };
    BATON_CHECK(std::memcmp(behind(got), behind(mirror.sent), kBehind) == 0, "a call wrote behind a tensor of ",
                mirror.bytes, " bytes");
    BATON_CHECK(mirror.use != Use::kRead || got == mirror.sent, "a call wrote into a tensor of ", mirror.bytes,
                " bytes that it only reads");
    if (mirror.use == Use::kWritten) std::memcpy(mirror.host, got.data(), mirror.bytes);
  }

  Ops& ops_;
  gpu::Stream upload_;  ///< calls that follow one another are not parted by copies
  std::deque<Mirror> mirrors_;
};

class HostTensorOps final : public Ops {
 public:
  explicit HostTensorOps(std::unique_ptr<Ops> ops) : ops_(std::move(ops)), mirrors_(*ops_) {}
  ~HostTensorOps() override { ops_->Sync(); }

  const OpsTraits& traits() const override { return ops_->traits(); }
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) override { return ops_->Allocate(bytes); }
  void CopyToDevice(void* dst, const void* src, size_t bytes) override { ops_->CopyToDevice(dst, src, bytes); }
  void CopyToHost(void* dst, const void* src, size_t bytes) override { ops_->CopyToHost(dst, src, bytes); }
  void Sync() override {
    mirrors_.ReturnAll();
    ops_->Sync();
  }
  absl::Status Prepare(const StepLimits& limits) override { return ops_->Prepare(limits); }
  absl::Status RunStep(const StepInputs& step, const StepCalls& issue) override { return ops_->RunStep(step, issue); }

  absl::StatusOr<std::unique_ptr<PackedLinear>> Pack(const Tensor& weight, const float* bias) override {
    return ops_->Pack(weight, bias);
  }
  absl::StatusOr<std::unique_ptr<PackedLinear>> PackQuantized(const QuantizedWeight& weight,
                                                              const float* bias) override {
    return ops_->PackQuantized(weight, bias);
  }
  absl::StatusOr<std::unique_ptr<PackedExperts>> PackExperts(const Tensor& weights, const float* biases) override {
    return ops_->PackExperts(weights, biases);
  }

  void Embedding(std::span<const int32_t> ids, const Tensor& table, float scale, const Tensor& out) override {
    ops_->Embedding(ids, Read(table), scale, Written(out));
  }
  void RmsNorm(const Tensor& x, const float* weight, float weight_offset, float eps, const Tensor& out) override {
    ops_->RmsNorm(Read(x), Read(weight, x.cols()), weight_offset, eps, Written(out));
  }
  void AddRmsNorm(const Tensor& x, const Tensor& residual, const float* weight, float weight_offset, float eps,
                  const Tensor& out) override {
    ops_->AddRmsNorm(Read(x), Written(residual), Read(weight, x.cols()), weight_offset, eps, Written(out));
  }
  void Add(const Tensor& x, const Tensor& residual) override { ops_->Add(Read(x), Written(residual)); }
  void Linear(const Tensor& x, const PackedLinear& w, const Tensor& out) override {
    ops_->Linear(Read(x), w, Written(out));
  }
  void GatedActivation(Activation act, const Tensor& gate_up, const Tensor& out) override {
    ops_->GatedActivation(act, Read(gate_up), Written(out));
  }
  void GatedLinear(const Tensor& x, const PackedLinear& w, Activation act, const Tensor& gate_up,
                   const Tensor& out) override {
    ops_->GatedLinear(Read(x), w, act, Written(gate_up), Written(out));
  }
  void LinearAdd(const Tensor& x, const PackedLinear& w, const Tensor& product, const Tensor& residual) override {
    ops_->LinearAdd(Read(x), w, Written(product), Written(residual));
  }
  void GatherRows(const Tensor& x, std::span<const int32_t> rows, const Tensor& out) override {
    ops_->GatherRows(Read(x), rows, Written(out));
  }

  void NormRopeAndWriteKv(const Tensor& q, const Tensor& k, const Tensor& v, const float* q_norm, const float* k_norm,
                          float norm_offset, float norm_eps, const RopeParams& rope, const RaggedBatch& batch,
                          const KvLayerView& kv) override {
    ops_->NormRopeAndWriteKv(Written(q), Read(k), Read(v), Read(q_norm, kv.k.dim), Read(k_norm, kv.k.dim), norm_offset,
                             norm_eps, rope, batch, There(kv, BlocksOf(batch.block_tables), Use::kWritten));
  }
  void Attention(const Tensor& q, const RaggedBatch& batch, const KvLayerView& kv, const AttentionParams& params,
                 const Tensor& out) override {
    AttentionParams on_device = params;
    on_device.sinks = Read(params.sinks, q.cols() / kv.k.dim);
    ops_->Attention(Read(q), batch, There(kv, BlocksOf(batch.block_tables), Use::kRead), on_device, Written(out));
  }
  void LatentAttention(const Tensor& q, const RaggedBatch& batch, const KvPlaneView& latents,
                       const AttentionParams& params, const Tensor& out) override {
    ops_->LatentAttention(Read(q), batch, There(latents, BlocksOf(batch.block_tables), Use::kRead), params,
                          Written(out));
  }

  void RouteTokens(const Tensor& logits, bool renormalize, const MoeRoutes& routes) override {
    ops_->RouteTokens(Read(logits), renormalize, There(routes, Use::kWritten));
  }
  void ExpertLinear(const Tensor& x, bool by_row, const MoeRoutes& routes, const PackedExperts& w,
                    const Tensor& out) override {
    ops_->ExpertLinear(Read(x), by_row, There(routes, Use::kRead), w, Written(out));
  }
  void CombineExperts(const Tensor& y, const MoeRoutes& routes, const Tensor& out) override {
    ops_->CombineExperts(Read(y), There(routes, Use::kRead), Written(out));
  }
  void CopyBlocks(std::span<const int32_t> src, std::span<const int32_t> dst, const KvLayerView& kv) override {
    ops_->CopyBlocks(src, dst, There(kv, std::max(BlocksOf(src), BlocksOf(dst)), Use::kWritten));
  }

  void SoftCap(float cap, const Tensor& x) override { ops_->SoftCap(cap, Written(x)); }
  std::vector<SampleResult> Sample(const Tensor& logits, std::span<const SampleRow> rows) override {
    return ops_->Sample(There(logits, Use::kSpent), rows);
  }
  std::unique_ptr<Draw> BeginSample(const Tensor& logits, std::span<const SampleRow> rows) override {
    return ops_->BeginSample(There(logits, Use::kSpent), rows);
  }
  bool DrawsLater(std::span<const SampleRow> rows) const override { return ops_->DrawsLater(rows); }
  std::vector<SampleResult> Logprobs(const Tensor& logits, std::span<const int32_t> targets, int32_t k) override {
    return ops_->Logprobs(There(logits, Use::kSpent), targets, k);
  }

 private:
  static int64_t BlocksOf(std::span<const int32_t> numbers) {
    return numbers.empty() ? 0 : int64_t{*std::ranges::max_element(numbers)} + 1;
  }
  template <typename T>
  T* There(T* host, int64_t n, Use use) {
    return static_cast<T*>(mirrors_.Of(host, static_cast<size_t>(n) * sizeof(T), use));
  }
  const float* Read(const float* host, int64_t n) { return There(host, n, Use::kRead); }
  Tensor There(const Tensor& host, Use use) {
    const int64_t elements = host.rows() == 0 ? 0 : (host.rows() - 1) * host.row_stride + host.cols();
    Tensor there = host;
    there.data = There(host.Data<char>(), elements * static_cast<int64_t>(DTypeBytes(host.dtype)), use);
    return there;
  }
  Tensor Read(const Tensor& host) { return There(host, Use::kRead); }
  Tensor Written(const Tensor& host) { return There(host, Use::kWritten); }
  KvPlaneView There(const KvPlaneView& host, int64_t blocks, Use use) {
    KvPlaneView there = host;
    there.base = There(static_cast<char*>(host.base), blocks * host.block_stride_bytes, use);
    there.digests = There(host.digests, blocks * host.digest_block_stride, use);
    return there;
  }
  KvLayerView There(const KvLayerView& host, int64_t blocks, Use use) {
    KvLayerView there = host;
    there.k = There(host.k, blocks, use);
    there.v = There(host.v, blocks, use);
    return there;
  }
  MoeRoutes There(const MoeRoutes& host, Use use) {
    MoeRoutes there = host;
    there.chosen = There(host.chosen, host.rows(), use);
    there.weights = There(host.weights, host.rows(), use);
    there.offsets = There(host.offsets, int64_t{host.experts} + 1, use);
    there.row_of_pair = There(host.row_of_pair, host.rows(), use);
    there.token_of_row = There(host.token_of_row, host.rows(), use);
    return there;
  }

  const std::unique_ptr<Ops> ops_;
  Mirrors mirrors_;
};

}  // namespace

std::unique_ptr<Ops> OnHostTensors(std::unique_ptr<Ops> ops) {
  gpu::HoldKernelsToDeviceMemory();
  return std::make_unique<HostTensorOps>(std::move(ops));
}

absl::StatusOr<std::unique_ptr<Ops>> MakeHostTensorOps(const CudaOpsConfig& config) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Ops> ops, MakeCudaOps(config));
  return OnHostTensors(std::move(ops));
}

}  // namespace baton::kernels
