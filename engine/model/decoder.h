// The one forward pass: a decoder-only transformer as ModelConfig describes it, over a ragged batch of paged sequences.
// One object is one rank's part of it (parallel/rank_place.h): with several, both sums over ranks are in SumOverRanks.
#pragma once

#include <memory>
#include <vector>

#include "engine/model/activations.h"
#include "engine/model/kv_groups.h"
#include "engine/model/micro_batch.h"
#include "engine/model/model.h"
#include "engine/model/weights.h"

namespace baton::engine {

/// The parts of a decoder. `ops` and the communicators of the links must outlive the decoder.
struct DecoderParts {
  ModelConfig config;
  KvLayout layout;  ///< of the whole model
  ModelWeights weights;
  int max_tokens = 0;                                            ///< of one step
  int64_t max_sequences = 0, max_positions = 0, logit_rows = 0;  ///< as max_tokens; 0 sequences: not known
  std::vector<int32_t> recorded_rows;                            ///< kernels::StepLimits::recorded_rows
  kernels::Ops& ops;
  RankPlace place;
  RankLinks links;
};

/// Thread: the executor's.
class Decoder : public Model {
 public:
  /// Allocates the activations, and has the device prepare for its steps: ResourceExhausted when memory is short.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(DecoderParts parts);

  const ModelConfig& config() const override { return config_; }
  const KvLayout& kv_layout() const override { return layout_; }
  size_t weight_bytes() const override { return static_cast<size_t>(weights_.bytes.Total()); }
  /// What it holds, as it was allocated.
  ModelMemory memory() const { return {weights_.bytes, a_.bytes(), ops_.rooms()}; }
  absl::StatusOr<kernels::Tensor> Forward(const ForwardBatch& batch, std::span<const KvGroupView> kv,
                                          const std::atomic<bool>& cancel) override;

 private:
  Decoder(DecoderParts parts, Activations activations);

  /// The rows whose logits are wanted, each once, and which of them every logits row is.
  struct WantedRows {
    explicit WantedRows(std::span<const int32_t> logit_rows);
    int64_t count() const { return static_cast<int64_t>(rows.size()); }
    bool repeated() const { return index.size() > rows.size(); }
    std::vector<int32_t> rows, index;
  };

  // The calls of one step, for the rows that the device chose.
  absl::StatusOr<kernels::Tensor> Issue(const ForwardBatch& batch, std::span<const KvGroupView> kv,
                                        const std::atomic<bool>& cancel);
  absl::Status CheckTokens(const ForwardBatch& batch) const;
  // The stage's work on one part: from the rows' entry to their passing on. `on_layer_kv` may be empty.
  absl::Status RunPart(const MicroBatch& part, std::span<const int32_t> tokens, std::span<const KvGroupView> kv,
                       const std::atomic<bool>& cancel, const std::function<void(int)>& on_layer_kv);
  // Embedded rows, or what the stage before left of them. residual [rows, hidden].
  absl::Status Enter(std::span<const int32_t> tokens, const kernels::Tensor& residual);
  // The stage's layers. The wanted rows' residual is in a_.head_in when the last layer is among them.
  absl::Status Layers(const MicroBatch& part, std::span<const KvGroupView> kv, const std::atomic<bool>& cancel,
                      const std::function<void(int)>& on_layer_kv, const kernels::Tensor& residual);
  // The wanted rows of all parts, from the last stage to the first, and their norm.
  absl::Status ReturnWanted(const WantedRows& wanted);
  // a_.normed [wanted, hidden] → logits [R, vocab] on rank 0.
  absl::StatusOr<kernels::Tensor> Head(const WantedRows& wanted);
  absl::Status GatherLogits(int64_t rows, const kernels::Tensor& normed);
  absl::Status LinksHealth() const override;
  // Between stages.
  Communicator& stages() const { return *(links_.stages != nullptr ? links_.stages : links_.world); }
  // What Ops was asked for is there for `link` to read.
  void BeReadyFor(const Communicator& link);

  // Whether a part of `rows` runs in the fused forms of Ops, which have the same bits: norms are then part of the
  // linear layers behind them, and the residual's sums of those before them. Needs sums that stay on this rank and no
  // post-norms.
  bool Fuses(int64_t rows) const;
  // normed (fused: residual) [T, hidden] → KV written and, unless only that is wanted, attended [T, q_heads ·
  // head_dim].
  void Attention(int layer, const kernels::RaggedBatch& batch, const kernels::KvLayerView& kv, int64_t tokens,
                 bool only_kv);
  // attended → residual, and its norm → normed. Both [rows, …].
  absl::Status AfterAttention(int layer, const kernels::Tensor& attended, const kernels::Tensor& residual);
  // normed → residual, and its norm by `next` → normed.
  absl::Status Mlp(int layer, const float* next, const kernels::Tensor& residual);
  // Both of them in fused forms; normed only where `next` is given.
  void FusedAfterAttention(int layer, const float* next, const kernels::Tensor& attended,
                           const kernels::Tensor& residual);
  // x · Wᵀ over all ranks' columns of x, into projected.
  absl::Status SumOverRanks(const kernels::Tensor& x,
                            const std::vector<std::unique_ptr<kernels::PackedLinear>>& leaves);
  // The tree over leaves [first, first + count), into a_.projected[level].
  void SumLeaves(const kernels::Tensor& x, const std::vector<std::unique_ptr<kernels::PackedLinear>>& leaves,
                 size_t first, size_t count, size_t level);
  // residual += projected (through `post_norm` if the family has one), and its norm by `next` → normed; null: no norm.
  void AddToResidual(const float* post_norm, const float* next, const kernels::Tensor& residual);
  const LayerWeights& WeightsOf(int layer) const {
    return weights_.layers[static_cast<size_t>(layer - shape_.layers.begin)];
  }

  const ModelConfig config_;
  const KvLayout layout_;  // of the whole model
  const RankPlace place_;
  const RankShape shape_;
  const RankLinks links_;
  const std::vector<KvPlace> places_;  // [num_layers], in the rank's KV
  const ModelWeights weights_;
  Activations a_;
  const int max_tokens_;
  kernels::Ops& ops_;
};

}  // namespace baton::engine
