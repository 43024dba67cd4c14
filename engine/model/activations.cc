#include "engine/model/activations.h"

#include <algorithm>

#include "common/status.h"

namespace baton::engine {
namespace {

using kernels::Tensor;

absl::StatusOr<Tensor> Make(std::initializer_list<int64_t> shape, DType type, kernels::Ops& ops,
                            std::vector<std::unique_ptr<kernels::Buffer>>& owners) {
  Tensor out(nullptr, type, shape);
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<kernels::Buffer> memory, ops.Allocate(out.elements() * DTypeBytes(type)));
  out.data = memory->data();
  owners.push_back(std::move(memory));
  return out;
}

}  // namespace

absl::StatusOr<Activations> Activations::Create(const ModelConfig& config, int max_tokens, kernels::Ops& ops) {
  const DType compute = ops.traits().compute;
  const int64_t T = max_tokens, hidden = config.hidden_size, inner = config.intermediate_size, dim = config.head_dim;
  Activations a;
  a.hidden_ = hidden;
  a.vocab_ = config.vocab_size;
  BATON_ASSIGN_OR_RETURN(a.residual, Make({T, hidden}, DType::kF32, ops, a.memory_));
  BATON_ASSIGN_OR_RETURN(a.normed, Make({T, hidden}, compute, ops, a.memory_));
  BATON_ASSIGN_OR_RETURN(a.qkv, Make({T, (config.num_heads + 2 * config.num_kv_heads) * dim}, compute, ops, a.memory_));
  BATON_ASSIGN_OR_RETURN(a.attended, Make({T, config.num_heads, dim}, compute, ops, a.memory_));
  BATON_ASSIGN_OR_RETURN(a.projected, Make({T, hidden}, DType::kF32, ops, a.memory_));
  if (config.post_norms) {
    BATON_ASSIGN_OR_RETURN(a.post_normed, Make({T, hidden}, DType::kF32, ops, a.memory_));
  }
  BATON_ASSIGN_OR_RETURN(a.gate_up, Make({T, 2 * inner}, compute, ops, a.memory_));
  BATON_ASSIGN_OR_RETURN(a.inner, Make({T, inner}, compute, ops, a.memory_));
  BATON_RETURN_IF_ERROR(a.ReserveLogits(kFirstLogitRows, ops));
  return a;
}

int64_t Activations::Bytes(const ModelConfig& c, int max_tokens, DType compute) {
  const int64_t narrow = static_cast<int64_t>(DTypeBytes(compute)), hidden = c.hidden_size;
  const int64_t heads = int64_t{c.head_dim} * (2 * c.num_heads + 2 * c.num_kv_heads);
  const int64_t per_token =
      hidden * ((c.post_norms ? 12 : 8) + narrow) + (heads + 3 * int64_t{c.intermediate_size}) * narrow;
  return max_tokens * per_token + kFirstLogitRows * (hidden * (4 + narrow) + int64_t{c.vocab_size} * 4);
}

absl::Status Activations::ReserveLogits(int64_t rows, kernels::Ops& ops) {
  if (logits.rank != 0 && rows <= logits.rows()) return absl::OkStatus();
  rows = std::max(rows, logits.rank == 0 ? 0 : 2 * logits.rows());
  std::vector<std::unique_ptr<kernels::Buffer>> owners;
  BATON_ASSIGN_OR_RETURN(Tensor in, Make({rows, hidden_}, DType::kF32, ops, owners));
  BATON_ASSIGN_OR_RETURN(Tensor normed_in, Make({rows, hidden_}, ops.traits().compute, ops, owners));
  BATON_ASSIGN_OR_RETURN(Tensor out, Make({rows, vocab_}, DType::kF32, ops, owners));
  ops.Sync();  // the old ones may be in use
  head_in = in;
  head_normed = normed_in;
  logits = out;
  logit_memory_ = std::move(owners);
  return absl::OkStatus();
}

}  // namespace baton::engine
