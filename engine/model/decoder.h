// The one forward pass: a decoder-only transformer as ModelConfig describes it, over a ragged batch of paged sequences.
#pragma once

#include <memory>
#include <vector>

#include "engine/model/activations.h"
#include "engine/model/kv_groups.h"
#include "engine/model/model.h"
#include "engine/model/weights.h"

namespace baton::engine {

/// Thread: the executor's. `ops` must outlive it.
class Decoder : public Model {
 public:
  /// Allocates the activations: ResourceExhausted when memory is short.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(ModelConfig config, KvLayout layout, ModelWeights weights,
                                                         int max_tokens, kernels::Ops& ops);

  const ModelConfig& config() const override { return config_; }
  const KvLayout& kv_layout() const override { return layout_; }
  size_t weight_bytes() const override { return weights_.bytes; }
  absl::StatusOr<kernels::Tensor> Forward(const ForwardBatch& batch, std::span<const KvGroupView> kv,
                                          const std::atomic<bool>& cancel) override;

 private:
  Decoder(ModelConfig config, KvLayout layout, ModelWeights weights, Activations activations, int max_tokens,
          kernels::Ops& ops);

  absl::Status CheckTokens(std::span<const int32_t> tokens) const;
  // normed [T, hidden] → KV written and, unless only that is wanted, attended [T, q_heads · head_dim].
  void Attention(int layer, const kernels::RaggedBatch& batch, const kernels::KvLayerView& kv, int64_t tokens,
                 bool only_kv);
  // attended → residual, and its norm → normed. Both [rows, …].
  void AfterAttention(int layer, const kernels::Tensor& attended, const kernels::Tensor& residual);
  // normed → residual, and its norm by `next` → normed.
  void Mlp(int layer, const float* next, const kernels::Tensor& residual);
  // residual += projected (through `post_norm` if the family has one), and its norm by `next` → normed.
  void AddToResidual(const float* post_norm, const float* next, const kernels::Tensor& residual);

  const ModelConfig config_;
  const KvLayout layout_;
  const std::vector<KvPlace> places_;  // [layers]
  const ModelWeights weights_;
  Activations a_;
  const int max_tokens_;
  kernels::Ops& ops_;
};

}  // namespace baton::engine
