// The forward pass's working memory, allocated once for the longest step; only the logits grow.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_config.h"
#include "kernels/ops.h"

namespace baton::engine {

/// One rank's buffers. "compute" is the device's activation type. Views for a step are cut by Rows(0, T).
class Activations {
 public:
  static absl::StatusOr<Activations> Create(const ModelConfig& config, int max_tokens, kernels::Ops& ops);
  /// What Create will allocate (logits for `kFirstLogitRows` rows).
  static int64_t Bytes(const ModelConfig& config, int max_tokens, DType compute);
  static constexpr int kFirstLogitRows = 64;

  kernels::Tensor residual;     // [max_tokens, hidden] f32
  kernels::Tensor normed;       // [max_tokens, hidden] compute
  kernels::Tensor qkv;          // [max_tokens, (q_heads + 2 kv_heads) · head_dim] compute
  kernels::Tensor attended;     // [max_tokens, q_heads, head_dim] compute
  kernels::Tensor projected;    // [max_tokens, hidden] f32: what attention or MLP adds to the residual
  kernels::Tensor post_normed;  // [max_tokens, hidden] f32: `projected` after the family's second norm
  kernels::Tensor gate_up;      // [max_tokens, 2 · intermediate] compute
  kernels::Tensor inner;        // [max_tokens, intermediate] compute

  kernels::Tensor head_in;      // [logit rows, hidden] f32: the residual of the wanted rows
  kernels::Tensor head_normed;  // [logit rows, hidden] compute: rows that are wanted several times, repeated
  kernels::Tensor logits;       // [logit rows, vocab] f32
  /// Makes the three above at least `rows` long; their contents are lost. ResourceExhausted: the old ones stay.
  absl::Status ReserveLogits(int64_t rows, kernels::Ops& ops);

 private:
  int64_t hidden_ = 0, vocab_ = 0;
  std::vector<std::unique_ptr<kernels::Buffer>> memory_, logit_memory_;
};

}  // namespace baton::engine
