// The scales that an HF checkpoint gives for KV kept in e4m3: one for a layer's keys, one for its values.
#pragma once

#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "engine/model/files/quantized_tensors.h"
#include "engine/model/kv_groups.h"

namespace baton::engine {

/// Of the decoder's layers [0, num_layers), whose tensors' names begin with `layers` ("model.layers.") and a number. A
/// layer without any has 1. InvalidArgument, with the tensor's name and its value: a number that is no scale (0 or
/// below, not finite, beyond 1e-30 … 1e30), numbers that differ (of heads: one is served), keys without values or
/// values without keys, two names that say two things, a name whose place is not known.
absl::StatusOr<KvScales> FindKvScales(const absl::flat_hash_map<std::string, TensorPlace>& places,
                                      std::string_view layers, int num_layers);

/// Whether a tensor's name is that of such a scale, wherever it belongs.
bool IsKvScale(std::string_view name);

}  // namespace baton::engine
