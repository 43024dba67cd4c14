#include "worker/transfer/kv_pool_view.h"

#include <algorithm>
#include <map>
#include <utility>

namespace baton::worker {
namespace {

KvPlaneMemory PieceOf(const kernels::KvPlaneView& plane, int first_head, int mover) {
  return {.base = static_cast<std::byte*>(plane.base),
          .block_stride_bytes = plane.block_stride_bytes,
          .digests = plane.digests,
          .digest_block_stride = plane.digest_block_stride,
          .heads = {first_head, first_head + plane.heads},
          .mover = mover,
          .scale = plane.scale};
}

void AddPiece(KvPlaneMemory& plane, KvPlaneMemory piece) {
  if (plane.base == nullptr) {
    plane = std::move(piece);
    return;
  }
  piece.copy = plane.heads == piece.heads ||
               std::ranges::any_of(plane.others, [&](const KvPlaneMemory& o) { return o.heads == piece.heads; });
  plane.others.push_back(std::move(piece));
}

}  // namespace

KvPoolView PoolViewOf(std::span<const engine::KvMemory* const> ranks, std::span<KvMover* const> movers) {
  KvPoolView view;
  view.movers.assign(movers.begin(), movers.end());
  for (size_t g = 0; g < ranks[0]->layout().groups.size(); ++g) {
    std::map<int, std::vector<KvPlaneMemory>> by_layer;
    for (size_t r = 0; r < ranks.size(); ++r) {
      const engine::KvMemory* rank = ranks[r];
      for (const kernels::KvLayerView& layer : rank->groups()[g].layers) {
        std::vector<KvPlaneMemory>& planes = by_layer[static_cast<int>(layer.layer)];
        planes.resize(2);
        AddPiece(planes[0], PieceOf(layer.k, rank->first_head(), static_cast<int>(r)));
        AddPiece(planes[1], PieceOf(layer.v, rank->first_head(), static_cast<int>(r)));
      }
    }
    KvPoolView::Group& group = view.groups.emplace_back();
    group.blocks = ranks[0]->num_blocks()[g];
    for (auto& [layer, planes] : by_layer) {
      group.layers.push_back(layer);
      group.planes.push_back(std::move(planes));
    }
  }
  return view;
}

KvPoolView RankPoolViewOf(const engine::KvMemory& rank, KvMover* mover) {
  const engine::KvMemory* const alone = &rank;
  KvPoolView view =
      mover != nullptr ? PoolViewOf({&alone, 1}, std::span<KvMover* const>(&mover, 1)) : PoolViewOf({&alone, 1});
  for (KvPoolView::Group& group : view.groups) {
    for (std::vector<KvPlaneMemory>& planes : group.planes) {
      for (KvPlaneMemory& plane : planes) plane.heads = {};
    }
  }
  return view;
}

KvBlockTables TablesOf(const engine::SequenceKv& kv) {
  KvBlockTables tables;
  for (const engine::BlockTable& table : kv.tables) tables.emplace_back(table.blocks().begin(), table.blocks().end());
  return tables;
}

KvSide SideOf(const KvLayout& layout) {
  int layers = 0;
  for (const KvGroup& group : layout.groups)
    layers = std::max(layers, group.layers.empty() ? 0 : group.layers.back() + 1);
  return {.layout = layout, .tensor_parallel_size = 1, .stage_layers = {0, layers}};
}

}  // namespace baton::worker
