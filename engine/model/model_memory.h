// What one rank's model takes, by kind: planned from the files' headers, or as it was allocated. Bytes, all of them.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/model/model.h"

namespace baton::engine {

/// Device memory of weights, biases with the layer that they belong to.
struct WeightBytes {
  int64_t embedding = 0;  ///< 0: the rank has none, or its head is the table as well
  int64_t attention = 0, mlp = 0, norms = 0, head = 0;
  int64_t Total() const { return embedding + attention + mlp + norms + head; }
  bool operator==(const WeightBytes&) const = default;
};

struct ModelMemory {
  WeightBytes weights;
  int64_t workspace = 0;         ///< activations and logits, before any logits have grown
  kernels::DeviceRooms rooms{};  ///< what steps take besides where the device has memory of its own
  int64_t Total() const { return weights.Total() + workspace + rooms.Total(); }
  bool operator==(const ModelMemory&) const = default;
};

/// One rank's part of a model that nobody has loaded.
struct RankMemory {
  ModelConfig config;
  KvLayout kv_layout;  ///< of the whole model
  ModelMemory memory{};
  int64_t scratch_bytes = 0;  ///< host memory besides, while it loads
  int64_t pinned_bytes = 0;   ///< host memory besides, once it has: where a device reads a step's inputs
};

/// Opens and checks everything that LoadModel does but the memory that is free, and loads nothing. Fails as LoadModel.
absl::StatusOr<RankMemory> PlanRankMemory(ModelSource source, const kernels::OpsTraits& traits, int max_tokens);

}  // namespace baton::engine
