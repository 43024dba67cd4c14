// The memory behind the block numbers of one rank: per KV group one buffer with every layer's K and V planes, and the
// digest of each 16-token unit beside them. Allocated through Ops once at start; executor and transfer threads read the
// views, which never move.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv_layout.h"
#include "engine/model/model.h"
#include "kernels/ops.h"

namespace baton::engine {

/// The number of blocks that each group gets out of `bytes`.
struct BlockBudget {
  std::vector<int32_t> num_blocks;  ///< per group
  int64_t bytes = 0;                ///< they take, digests included
  int64_t tokens = 0;               ///< the cache holds (of its paged groups; of all when there are none)
};

/// Shares out memory: window groups get what `max_num_seqs` windows need, paged groups the rest. `max_step_tokens`: the
/// longest chunk. ResourceExhausted with both numbers when one sequence of `max_model_len` tokens does not fit.
absl::StatusOr<BlockBudget> PlanBlocks(const KvLayout& layout, int64_t bytes, int32_t max_model_len,
                                       int32_t max_num_seqs, int32_t max_step_tokens);

/// The bytes with which PlanBlocks gives paged groups `tokens`: of a window group what `max_num_seqs` windows and a
/// step's chunk need, not all of `tokens`.
int64_t BytesOfTokens(const KvLayout& layout, int64_t tokens, int32_t max_model_len, int32_t max_num_seqs,
                      int32_t max_step_tokens);

class KvMemory {
 public:
  /// `layout` is the rank's (RankKvLayout), whose first KV head is `first_head` of the model. `given`: zeroed memory of
  /// Bytes(), aligned to 64, that outlives it; else it allocates. ResourceExhausted when memory is short;
  /// FailedPrecondition for planes this engine does not know.
  static absl::StatusOr<std::unique_ptr<KvMemory>> Create(const KvLayout& layout, std::span<const int32_t> num_blocks,
                                                          kernels::Ops& ops, int first_head = 0,
                                                          std::span<std::byte> given = {});
  static int64_t Bytes(const KvLayout& layout, std::span<const int32_t> num_blocks);
  std::span<const KvGroupView> groups() const { return views_; }
  const KvLayout& layout() const { return layout_; }
  const std::vector<int32_t>& num_blocks() const { return num_blocks_; }
  int64_t bytes() const { return bytes_; }
  int first_head() const { return first_head_; }

 private:
  KvMemory() = default;
  KvGroupView ViewOf(const KvGroup& group, int64_t blocks, char* at) const;
  KvLayout layout_;
  std::vector<int32_t> num_blocks_;
  std::vector<std::unique_ptr<kernels::Buffer>> buffers_;
  std::vector<KvGroupView> views_;
  int64_t bytes_ = 0;
  int first_head_ = 0;
};

}  // namespace baton::engine
