#include "worker/kv_pool_view.h"

#include <algorithm>

namespace baton::worker {
namespace {

KvPlaneMemory PlaneOf(const kernels::KvPlaneView& plane) {
  return {static_cast<std::byte*>(plane.base), plane.block_stride_bytes, plane.digests, plane.digest_block_stride};
}

}  // namespace

KvPoolView PoolViewOf(const engine::KvMemory& memory) {
  KvPoolView view;
  for (size_t g = 0; g < memory.groups().size(); ++g) {
    KvPoolView::Group& group = view.groups.emplace_back();
    group.layers = memory.layout().groups[g].layers;
    group.blocks = memory.num_blocks()[g];
    for (const kernels::KvLayerView& layer : memory.groups()[g].layers)
      group.planes.push_back({PlaneOf(layer.k), PlaneOf(layer.v)});
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
