// The forward pass's working memory, allocated once for the longest step; only the logits grow.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/config/model_config.h"
#include "engine/parallel/rank_place.h"
#include "kernels/ops.h"

namespace baton::engine {

/// One rank's buffers: heads, inner width and vocabulary are the rank's. "compute" is the device's activation type.
/// Views for a step are cut by Rows(0, T).
class Activations {
 public:
  /// `logit_rows`: rows of logits that are there from the start.
  static absl::StatusOr<Activations> Create(const ModelConfig& config, const RankPlace& place, int max_tokens,
                                            int64_t logit_rows, kernels::Ops& ops);
  /// The bytes that Create will allocate.
  static int64_t Bytes(const ModelConfig& config, const RankPlace& place, int max_tokens, int64_t logit_rows,
                       DType compute);
  /// Of all that is allocated now.
  int64_t bytes() const;
  static constexpr int64_t kFirstLogitRows = 64;  ///< where they may grow

  kernels::Tensor residual;  // [max_tokens, hidden] f32
  kernels::Tensor normed;    // [max_tokens, hidden] compute
  kernels::Tensor qkv;       // [max_tokens, (q_heads + 2 kv_heads) · head_dim] compute
  kernels::Tensor attended;  // [max_tokens, q_heads, head_dim] compute
  /// [max_tokens, hidden] f32 each. The first: what attention or MLP adds to the residual; the others: partial sums on
  /// their way into it, one for each level of the rank's tree of leaves.
  std::vector<kernels::Tensor> projected;
  kernels::Tensor post_normed;  // [max_tokens, hidden] f32: `projected` after the family's second norm
  kernels::Tensor gate_up;      // [max_tokens, 2 · intermediate] compute
  kernels::Tensor inner;        // [max_tokens, intermediate] compute

  kernels::Tensor head_in;      // [logit rows, hidden] f32: the residual of the wanted rows
  kernels::Tensor head_normed;  // [logit rows, hidden] compute: rows that are wanted several times, repeated
  kernels::Tensor logits;       // [logit rows, vocab] f32, on world rank 0
  kernels::Tensor part_logits;  // [logit rows, the longest share of the vocabulary] f32, with TP in the first stage
  /// Makes the four above at least `rows` long; their contents are lost. ResourceExhausted: the old ones stay.
  absl::Status ReserveLogits(int64_t rows, kernels::Ops& ops);

 private:
  int64_t hidden_ = 0, vocab_ = 0, part_vocab_ = 0;  ///< 0: the rank has no such logits
  std::vector<std::unique_ptr<kernels::Buffer>> memory_, logit_memory_;
};

}  // namespace baton::engine
