#include "engine/model/kv_groups.h"

#include <map>

#include "common/status.h"

namespace baton::engine {

absl::StatusOr<KvLayout> MakeKvLayout(const ModelConfig& config, DType kv_dtype, int block_size) {
  if (block_size <= 0 || block_size % kUnitTokens != 0) {
    return absl::InvalidArgumentError(
        StrCat("block size ", block_size, " is not a multiple of ", kUnitTokens, " tokens"));
  }
  std::map<int, std::vector<int>> by_window;  // 0, no window, comes first
  for (int layer = 0; layer < config.num_layers; ++layer) by_window[config.layers[layer].window].push_back(layer);
  KvLayout out;
  for (auto& [window, layers] : by_window) {
    out.groups.push_back({.layers = std::move(layers),
                          .kind = window > 0 ? KvGroupKind::kWindow : KvGroupKind::kPaged,
                          .window_tokens = window,
                          .planes = {{KvPlane::Name::kK, kv_dtype, config.num_kv_heads, config.head_dim},
                                     {KvPlane::Name::kV, kv_dtype, config.num_kv_heads, config.head_dim}},
                          .tokens_per_block = block_size});
  }
  return out;
}

void SetKvScales(const KvScales& scales, KvLayout& layout) {
  for (KvGroup& group : layout.groups) {
    for (KvPlane& plane : group.planes) {
      if (plane.name == KvPlane::Name::kK) plane.scales = scales.keys;
      if (plane.name == KvPlane::Name::kV) plane.scales = scales.values;
    }
  }
}

KvLayout RankKvLayout(const KvLayout& whole, const RankShape& shape) {
  KvLayout out = whole;
  for (KvGroup& group : out.groups) {
    std::erase_if(group.layers, [&](int layer) { return layer < shape.layers.begin || layer >= shape.layers.end; });
    for (KvPlane& plane : group.planes) plane.heads = shape.kv_heads.size();
  }
  return out;
}

std::vector<KvPlace> KvPlaces(const KvLayout& layout, int num_layers) {
  std::vector<KvPlace> out(num_layers);
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    for (size_t i = 0; i < layout.groups[g].layers.size(); ++i) {
      out[layout.groups[g].layers[i]] = {static_cast<int>(g), static_cast<int>(i)};
    }
  }
  return out;
}

}  // namespace baton::engine
