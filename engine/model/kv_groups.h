// Which layers share block tables, by what they keep.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/kv_layout.h"
#include "engine/model/config/model_config.h"
#include "engine/parallel/rank_place.h"

namespace baton::engine {

/// Full-attention layers first, then one group per window, narrow to wide. InvalidArgument: block size.
absl::StatusOr<KvLayout> MakeKvLayout(const ModelConfig& config, DType kv_dtype, int block_size);

/// Scales of a model's KV in e4m3, by layer: value = stored · scale. Empty: all are 1.
struct KvScales {
  std::vector<float> keys, values;  ///< [num_layers] each
};
/// Writes them into the planes of keys and of values.
void SetKvScales(const KvScales& scales, KvLayout& layout);

/// The part of `whole` that one rank keeps: its layers and KV heads. A group stays even without layers: block tables
/// are per group.
KvLayout RankKvLayout(const KvLayout& whole, const RankShape& shape);

/// Where a layer's KV lies.
struct KvPlace {
  int group = 0;
  int index = 0;  ///< in KvGroup::layers
};
/// [num_layers]
std::vector<KvPlace> KvPlaces(const KvLayout& layout, int num_layers);

}  // namespace baton::engine
