// Host side of attention: which tiles a step has. Uploaded with the step's block tables; the grids stay fixed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/attention/attention_decode.cuh"
#include "kernels/cuda/attention/attention_prefill.cuh"

namespace baton::cuda {

/// 64-row tiles of every sequence, longest walk first, so that the tail of the grid is short work.
/// row_start [sequences + 1], lengths [sequences] including the new rows; sequences of fewer than min_rows are left
/// out.
inline std::vector<PrefillTile> PlanPrefill(std::span<const int32_t> row_start, std::span<const int32_t> lengths,
                                            int min_rows = 1) {
  std::vector<PrefillTile> tiles;
  for (size_t s = 0; s < lengths.size(); ++s)
    for (int32_t row = 0; row < row_start[s + 1] - row_start[s] && row_start[s + 1] - row_start[s] >= min_rows;
         row += kPrefillRows)
      tiles.push_back({static_cast<int32_t>(s), row});
  auto end = [&](const PrefillTile& t) {
    return lengths[t.sequence] - (row_start[t.sequence + 1] - row_start[t.sequence]) + t.first_row;
  };
  std::stable_sort(tiles.begin(), tiles.end(),
                   [&](const PrefillTile& a, const PrefillTile& b) { return end(a) > end(b); });
  return tiles;
}

struct DecodePlan {
  std::vector<DecodeGroup> groups;
  std::vector<DecodeItem> items;
  int partials = 0;  ///< slots of [16, head_dim] that the step needs
};

struct DecodeShape {
  std::span<const int32_t> row_start;  ///< [sequences + 1]
  std::span<const int32_t> lengths;    ///< [sequences], or [sequences, kv_heads] with per-head tables
  bool per_head_lengths = false;
  int q_heads = 1, kv_heads = 1, window = 0;
  int tiles_per_item = 1;             ///< 256-token tiles one warp walks before it takes other work
  bool fixed_tiles = true;            ///< one partial per tile, else one per item
  int max_rows = INT32_MAX;           ///< sequences of more rows are left out
  int rows_per_group = kRowsPerWarp;  ///< packed rows that one block takes; mla_decode.cuh: kMlaRows
};

inline DecodePlan PlanDecode(const DecodeShape& shape) {
  DecodePlan plan;
  const int group_heads = shape.q_heads / shape.kv_heads;
  for (size_t s = 0; s + 1 < shape.row_start.size(); ++s) {
    const int rows = shape.row_start[s + 1] - shape.row_start[s];
    for (int head = 0; head < shape.kv_heads && rows > 0 && rows <= shape.max_rows; ++head) {
      const int length = shape.lengths[shape.per_head_lengths ? s * shape.kv_heads + head : s];
      const int oldest = shape.window > 0 ? std::max(0, length - rows - shape.window + 1) : 0;
      const int first = oldest / kTileTokens, tiles = std::max(0, (length + kTileTokens - 1) / kTileTokens - first);
      for (int row = 0; row < rows * group_heads; row += shape.rows_per_group) {
        DecodeGroup group{static_cast<int32_t>(s), head, row, plan.partials, 0};
        for (int t = 0; t < tiles; t += shape.tiles_per_item) {
          const int n = std::min(shape.tiles_per_item, tiles - t);
          plan.items.push_back({static_cast<int32_t>(plan.groups.size()), first + t, n, plan.partials});
          plan.partials += shape.fixed_tiles ? n : 1;
        }
        group.partials = plan.partials - group.first_partial;
        plan.groups.push_back(group);
      }
    }
  }
  return plan;
}

/// Consecutive groups of a plan, with their items: what one launch takes.
struct DecodeSlice {
  int first_group = 0, groups = 0, first_item = 0, items = 0, partials = 0;
};

/// Cuts a plan into slices of at most `max_partials` partials; a group that has more is a slice of its own. Groups and
/// partials are numbered anew from the start of their slice, as a launch reads them.
inline std::vector<DecodeSlice> SliceDecode(DecodePlan& plan, int max_partials) {
  std::vector<DecodeSlice> slices;
  int begun = 0;  // partials before the slice
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    DecodeGroup& group = plan.groups[g];
    if (slices.empty() || slices.back().partials + group.partials > max_partials) {
      begun = group.first_partial;
      const int first_item = slices.empty() ? 0 : slices.back().first_item + slices.back().items;
      slices.push_back({.first_group = static_cast<int>(g), .first_item = first_item});
    }
    DecodeSlice& slice = slices.back();
    group.first_partial -= begun;
    slice.partials += group.partials;
    ++slice.groups;
    for (size_t i = static_cast<size_t>(slice.first_item) + static_cast<size_t>(slice.items);
         i < plan.items.size() && plan.items[i].group == static_cast<int>(g); ++i, ++slice.items) {
      plan.items[i].group -= slice.first_group;
      plan.items[i].first_partial -= begun;
    }
  }
  return slices;
}

}  // namespace baton::cuda
