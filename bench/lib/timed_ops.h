// An Ops that passes every call on and keeps what each took: where the time of a step goes. Fused forms are timed as
// their parts.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops.h"

namespace baton::bench {

class TimedOps final : public kernels::Ops {
 public:
  struct Spent {
    double seconds = 0;
    int64_t calls = 0;
  };

  explicit TimedOps(std::unique_ptr<kernels::Ops> ops) : ops_(std::move(ops)) {}

  /// By operation, since Forget; a linear layer with its [N, K]. The time between two calls is the caller's.
  const std::map<std::string, Spent>& spent() const { return spent_; }
  void Forget() { spent_.clear(); }

  const kernels::OpsTraits& traits() const override { return ops_->traits(); }
  absl::StatusOr<std::unique_ptr<kernels::Buffer>> Allocate(size_t bytes) override { return ops_->Allocate(bytes); }
  void CopyToDevice(void* dst, const void* src, size_t bytes) override { ops_->CopyToDevice(dst, src, bytes); }
  void CopyToHost(void* dst, const void* src, size_t bytes) override { ops_->CopyToHost(dst, src, bytes); }
  void Sync() override { ops_->Sync(); }
  absl::StatusOr<std::unique_ptr<kernels::PackedLinear>> Pack(const kernels::Tensor& weight,
                                                              const float* bias) override {
    return ops_->Pack(weight, bias);
  }

  absl::StatusOr<std::unique_ptr<kernels::PackedLinear>> PackQuantized(const kernels::QuantizedWeight& weight,
                                                                       const float* bias) override {
    return ops_->PackQuantized(weight, bias);
  }
  absl::StatusOr<std::unique_ptr<kernels::PackedExperts>> PackExperts(const kernels::Tensor& weights,
                                                                      const float* biases) override {
    return ops_->PackExperts(weights, biases);
  }

  void Embedding(std::span<const int32_t> ids, const kernels::Tensor& table, float scale,
                 const kernels::Tensor& out) override {
    Time("embedding", [&] { ops_->Embedding(ids, table, scale, out); });
  }
  void EmbeddingOfPacked(std::span<const int32_t> ids, const kernels::PackedLinear& table, float scale,
                         const kernels::Tensor& out) override {
    Time("embedding", [&] { ops_->EmbeddingOfPacked(ids, table, scale, out); });
  }
  void RmsNorm(const kernels::Tensor& x, const float* weight, float offset, float eps,
               const kernels::Tensor& out) override {
    Time("rms_norm", [&] { ops_->RmsNorm(x, weight, offset, eps, out); });
  }
  void AddRmsNorm(const kernels::Tensor& x, const kernels::Tensor& residual, const float* weight, float offset,
                  float eps, const kernels::Tensor& out) override {
    Time("add_rms_norm", [&] { ops_->AddRmsNorm(x, residual, weight, offset, eps, out); });
  }
  void Add(const kernels::Tensor& x, const kernels::Tensor& residual) override {
    Time("add", [&] { ops_->Add(x, residual); });
  }
  void Linear(const kernels::Tensor& x, const kernels::PackedLinear& w, const kernels::Tensor& out) override {
    Time("linear " + std::to_string(w.out_features()) + "x" + std::to_string(w.in_features()),
         [&] { ops_->Linear(x, w, out); });
  }
  void GatedActivation(kernels::Activation act, const kernels::Tensor& gate_up, const kernels::Tensor& out) override {
    Time("gated_activation", [&] { ops_->GatedActivation(act, gate_up, out); });
  }
  void GatherRows(const kernels::Tensor& x, std::span<const int32_t> rows, const kernels::Tensor& out) override {
    Time("gather_rows", [&] { ops_->GatherRows(x, rows, out); });
  }
  void NormRopeAndWriteKv(const kernels::Tensor& q, const kernels::Tensor& k, const kernels::Tensor& v,
                          const float* q_norm, const float* k_norm, float norm_offset, float norm_eps,
                          const kernels::RopeParams& rope, const kernels::RaggedBatch& batch,
                          const kernels::KvLayerView& kv) override {
    Time("rope_and_write_kv",
         [&] { ops_->NormRopeAndWriteKv(q, k, v, q_norm, k_norm, norm_offset, norm_eps, rope, batch, kv); });
  }
  void Attention(const kernels::Tensor& q, const kernels::RaggedBatch& batch, const kernels::KvLayerView& kv,
                 const kernels::AttentionParams& params, const kernels::Tensor& out) override {
    Time("attention", [&] { ops_->Attention(q, batch, kv, params, out); });
  }
  void LatentAttention(const kernels::Tensor& q, const kernels::RaggedBatch& batch, const kernels::KvPlaneView& latents,
                       const kernels::AttentionParams& params, const kernels::Tensor& out) override {
    Time("latent_attention", [&] { ops_->LatentAttention(q, batch, latents, params, out); });
  }
  void RouteTokens(const kernels::Tensor& logits, bool renormalize, const kernels::MoeRoutes& routes) override {
    Time("route_tokens", [&] { ops_->RouteTokens(logits, renormalize, routes); });
  }
  void ExpertLinear(const kernels::Tensor& x, bool by_row, const kernels::MoeRoutes& routes,
                    const kernels::PackedExperts& w, const kernels::Tensor& out) override {
    Time("expert_linear", [&] { ops_->ExpertLinear(x, by_row, routes, w, out); });
  }
  void CombineExperts(const kernels::Tensor& y, const kernels::MoeRoutes& routes, const kernels::Tensor& out) override {
    Time("combine_experts", [&] { ops_->CombineExperts(y, routes, out); });
  }
  void CopyBlocks(std::span<const int32_t> src, std::span<const int32_t> dst, const kernels::KvLayerView& kv) override {
    Time("copy_blocks", [&] { ops_->CopyBlocks(src, dst, kv); });
  }
  void SoftCap(float cap, const kernels::Tensor& x) override {
    Time("soft_cap", [&] { ops_->SoftCap(cap, x); });
  }
  std::vector<kernels::SampleResult> Sample(const kernels::Tensor& logits,
                                            std::span<const kernels::SampleRow> rows) override {
    std::vector<kernels::SampleResult> results;
    Time("sample", [&] { results = ops_->Sample(logits, rows); });
    return results;
  }
  std::vector<kernels::SampleResult> Logprobs(const kernels::Tensor& logits, std::span<const int32_t> targets,
                                              int32_t k) override {
    std::vector<kernels::SampleResult> results;
    Time("logprobs", [&] { results = ops_->Logprobs(logits, targets, k); });
    return results;
  }

 private:
  template <class Call>
  void Time(const std::string& name, Call call) {
    const auto start = std::chrono::steady_clock::now();
    call();
    Spent& spent = spent_[name];
    spent.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    ++spent.calls;
  }

  std::unique_ptr<kernels::Ops> ops_;
  std::map<std::string, Spent> spent_;
};

}  // namespace baton::bench
