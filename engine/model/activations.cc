#include "engine/model/activations.h"

#include <algorithm>
#include <bit>

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

// Widths of one rank's buffers, in elements.
struct Widths {
  int64_t hidden, qkv, q_heads, inner, vocab, part_vocab;
  int sums;  ///< buffers for partial sums: the depth of the tree, and one
};

Widths WidthsOf(const ModelConfig& config, const RankPlace& place) {
  const RankShape shape = ShapeOf(config, place);
  const bool head = place.first_stage(), split = place.tensor_size > 1;
  return {.hidden = config.hidden_size,
          .qkv = int64_t{shape.q_heads.size() + 2 * shape.kv_heads.size()} * config.head_dim,
          .q_heads = shape.q_heads.size(),
          .inner = shape.inner.size(),
          .vocab = place.rank() == 0 ? config.vocab_size : 0,
          .part_vocab = head && split ? config.vocab_size / place.tensor_size + 1 : 0,
          .sums = static_cast<int>(std::bit_width(static_cast<unsigned>(place.leaves())))};
}

}  // namespace

absl::StatusOr<Activations> Activations::Create(const ModelConfig& config, const RankPlace& place, int max_tokens,
                                                int64_t logit_rows, kernels::Ops& ops) {
  const DType compute = ops.traits().compute;
  const int64_t T = max_tokens;
  const Widths w = WidthsOf(config, place);
  Activations a;
  a.hidden_ = w.hidden;
  a.vocab_ = w.vocab;
  a.part_vocab_ = w.part_vocab;
  BATON_ASSIGN_OR_RETURN(a.residual, Make({T, w.hidden}, DType::kF32, ops, a.memory_));
  BATON_ASSIGN_OR_RETURN(a.normed, Make({T, w.hidden}, compute, ops, a.memory_));
  BATON_ASSIGN_OR_RETURN(a.qkv, Make({T, w.qkv}, compute, ops, a.memory_));
  BATON_ASSIGN_OR_RETURN(a.attended, Make({T, w.q_heads, config.head_dim}, compute, ops, a.memory_));
  for (int i = 0; i < w.sums; ++i) {
    BATON_ASSIGN_OR_RETURN(a.projected.emplace_back(), Make({T, w.hidden}, DType::kF32, ops, a.memory_));
  }
  if (config.post_norms) {
    BATON_ASSIGN_OR_RETURN(a.post_normed, Make({T, w.hidden}, DType::kF32, ops, a.memory_));
  }
  BATON_ASSIGN_OR_RETURN(a.gate_up, Make({T, 2 * w.inner}, compute, ops, a.memory_));
  BATON_ASSIGN_OR_RETURN(a.inner, Make({T, w.inner}, compute, ops, a.memory_));
  BATON_RETURN_IF_ERROR(a.ReserveLogits(logit_rows, ops));
  return a;
}

int64_t Activations::Bytes(const ModelConfig& c, const RankPlace& place, int max_tokens, int64_t logit_rows,
                           DType compute) {
  const Widths w = WidthsOf(c, place);
  const int64_t narrow = static_cast<int64_t>(DTypeBytes(compute));
  const int64_t floats = w.hidden * (1 + w.sums + (c.post_norms ? 1 : 0));
  const int64_t narrows = w.hidden + w.qkv + w.q_heads * c.head_dim + 3 * w.inner;
  return max_tokens * (floats * 4 + narrows * narrow) +
         logit_rows * (w.hidden * (4 + narrow) + (w.vocab + w.part_vocab) * 4);
}

int64_t Activations::bytes() const {
  int64_t sum = 0;
  for (const auto* memory : {&memory_, &logit_memory_}) {
    for (const auto& buffer : *memory) sum += static_cast<int64_t>(buffer->bytes());
  }
  return sum;
}

absl::Status Activations::ReserveLogits(int64_t rows, kernels::Ops& ops) {
  if (head_in.rank != 0 && rows <= head_in.rows()) return absl::OkStatus();
  rows = std::max(rows, head_in.rank == 0 ? 0 : 2 * head_in.rows());
  std::vector<std::unique_ptr<kernels::Buffer>> owners;
  Tensor out, part;
  BATON_ASSIGN_OR_RETURN(Tensor in, Make({rows, hidden_}, DType::kF32, ops, owners));
  BATON_ASSIGN_OR_RETURN(Tensor normed_in, Make({rows, hidden_}, ops.traits().compute, ops, owners));
  if (vocab_ > 0) {
    BATON_ASSIGN_OR_RETURN(out, Make({rows, vocab_}, DType::kF32, ops, owners));
  }
  if (part_vocab_ > 0) {
    BATON_ASSIGN_OR_RETURN(part, Make({rows, part_vocab_}, DType::kF32, ops, owners));
  }
  ops.Sync();  // the old ones may be in use
  head_in = in;
  head_normed = normed_in;
  logits = out;
  part_logits = part;
  logit_memory_ = std::move(owners);
  return absl::OkStatus();
}

}  // namespace baton::engine
