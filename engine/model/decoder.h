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
  Decoder(ModelConfig config, KvLayout layout, ModelWeights weights, Activations activations, int max_tokens, kernels::Ops& ops);

  absl::Status CheckTokens(std::span<const int32_t> tokens) const;
  // normed → projected, and KV written.
  void Attention(int layer, int64_t tokens, const kernels::RaggedBatch& batch, const kernels::KvLayerView& kv);
  // normed → projected.
  void Mlp(int layer, int64_t tokens);
  // residual += projected (through `post_norm` if the family has one), and its norm by `next` → normed. Null next: none.
  void AddToResidual(const float* post_norm, const float* next, int64_t tokens);
  absl::StatusOr<kernels::Tensor> Logits(std::span<const int32_t> rows, int64_t tokens);

  const ModelConfig config_;
  const KvLayout layout_;
  const std::vector<KvPlace> places_;  // [layers]
  const ModelWeights weights_;
  Activations a_;
  const int max_tokens_;
  kernels::Ops& ops_;
};

}  // namespace baton::engine
