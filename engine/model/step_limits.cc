#include "engine/model/step_limits.h"

#include <algorithm>

#include "engine/model/kv_groups.h"
#include "kernels/device_rooms.h"

namespace baton::engine {

kernels::StepLimits StepLimitsOf(const ModelConfig& config, const RankPlace& place, const KvLayout& layout,
                                 const StepBounds& bounds) {
  const RankShape shape = ShapeOf(config, place);
  kernels::StepLimits limits{.rows = bounds.tokens,
                             .sequences = bounds.sequences,
                             .positions = bounds.positions,
                             .logit_rows = bounds.logit_rows,
                             .vocab = config.vocab_size,
                             .tokens_per_block = {},
                             .ropes = config.ropes};
  for (const KvGroup& group : layout.groups) {
    limits.tokens_per_block.push_back(group.tokens_per_block);
    for (const KvPlane& plane : group.planes) {
      if (plane.dtype == DType::kF8E4M3)
        limits.kv_scales.insert(limits.kv_scales.end(), plane.scales.begin(), plane.scales.end());
    }
  }
  const std::vector<KvPlace> places = KvPlaces(layout, config.num_layers);
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const kernels::StepLimits::Heads heads{shape.q_heads.size(), shape.kv_heads.size(), config.head_dim,
                                           config.layers[i].window, places[i].group};
    if (std::ranges::find(limits.attention, heads) == limits.attention.end()) limits.attention.push_back(heads);
  }
  return limits;
}

kernels::DeviceRooms RankRooms(const ModelSource& source, const kernels::StepLimits& limits, int64_t hidden_size,
                               const kernels::CodeRooms& codes, int64_t work_bytes) {
  kernels::DeviceRooms rooms{.scales = kernels::device_sizes::kScales};
  if (limits.sequences > 0) rooms = kernels::RoomsOf(limits, codes, work_bytes);
  const RankPlace& place = source.place;
  if (place.ranks() > 1) rooms.sums += kernels::GatheredBytes(place.ranks(), 0);
  if (place.tensor_size > 1) {
    rooms.sums += kernels::GatheredBytes(place.tensor_size, limits.rows * hidden_size) +
                  kernels::OneShotBytes(place.tensor_size, source.one_shot_sum_bytes);
  }
  if (source.hands_over) rooms.handoff = kernels::HandoffBytes(source.lent_slot_bytes);
  return rooms;
}

}  // namespace baton::engine
