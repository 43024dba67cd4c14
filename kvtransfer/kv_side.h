// The cut of one worker's KV over its ranks: tensor parallelism over heads, pipeline parallelism over layers.
// Pure values; any thread.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "common/int_range.h"
#include "common/kv_layout.h"

namespace baton {

/// More is refused, from whoever says it: the work of a transfer plan grows with the ranks of both sides.
inline constexpr int kMaxTensorParallelSize = 1024, kMaxStages = 1024;

/// One side of a transfer. Rank number = stage · tensor_parallel_size + tp_rank.
struct KvSide {
  KvLayout layout;  ///< of the whole model; planes name heads before the cut
  int tensor_parallel_size = 1;
  std::vector<int> stage_layers;  ///< [stages + 1] first global layer of each stage, then the number of layers

  int stages() const { return static_cast<int>(stage_layers.size()) - 1; }
  int ranks() const { return stages() * tensor_parallel_size; }
  int TpRank(int rank) const { return rank % tensor_parallel_size; }
  IntRange LayersOf(int rank) const {
    const auto stage = static_cast<size_t>(rank / tensor_parallel_size);
    return {stage_layers[stage], stage_layers[stage + 1]};
  }
  /// KV heads of `plane` that `rank` keeps; a head is kept by several ranks when there are more ranks than heads.
  IntRange HeadsOf(int rank, const KvPlane& plane) const;
  /// The number of tensor-parallel ranks that keep each head of `plane`.
  int Replicas(const KvPlane& plane) const {
    return tensor_parallel_size > plane.heads ? tensor_parallel_size / plane.heads : 1;
  }
};

/// InvalidArgument unless heads divide (or are divided by) the TP size, stages ascend, and blocks hold whole units.
absl::Status CheckSide(const KvSide& side);

/// InvalidArgument, naming every differing field with both values, unless both layouts mean the same KV. Block size and
/// element type may differ: the pass that places converts them.
absl::Status CheckSameMeaning(const KvLayout& source, const KvLayout& target);

}  // namespace baton
