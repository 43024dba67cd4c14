// A model's weights on one device, packed; and what they will take before they are loaded.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model.h"
#include "engine/model/model_memory.h"
#include "engine/model/weight_parts.h"
#include "engine/model/weight_source.h"
#include "kernels/packed_size.h"

namespace baton::engine {

/// One layer's part of this rank: heads, inner width and vocabulary are the rank's own. Norm pointers are device memory
/// of ModelWeights; null: the family has none.
struct LayerWeights {
  const float* input_norm = nullptr;               // [hidden]
  const float* post_attention_norm = nullptr;      // [hidden]
  const float* mlp_norm = nullptr;                 // [hidden]
  const float* post_mlp_norm = nullptr;            // [hidden]
  const float* query_norm = nullptr;               // [head_dim]
  const float* key_norm = nullptr;                 // [head_dim]
  std::unique_ptr<kernels::PackedLinear> qkv;      // [(q_heads + 2 kv_heads) · head_dim, hidden]
  std::unique_ptr<kernels::PackedLinear> gate_up;  // [2 · intermediate, hidden]
  /// The leaves of a sum over ranks (rank_place.h), in order: the layer's inputs are cut evenly among them.
  std::vector<std::unique_ptr<kernels::PackedLinear>> output;  // each [hidden, q_heads · head_dim / leaves]
  std::vector<std::unique_ptr<kernels::PackedLinear>> down;    // each [hidden, intermediate / leaves]
};

/// Owned by the model; the Ops that packed them must outlive them.
struct ModelWeights {
  kernels::Tensor
      embedding;  // [vocab, hidden], on the rank that looks tokens up; no data: lm_head is the table as well
  const float* final_norm = nullptr;               // [hidden], with the head
  std::vector<LayerWeights> layers;                // of the rank's stage
  std::unique_ptr<kernels::PackedLinear> lm_head;  // [the rank's vocabulary, hidden], in the first stage
  WeightBytes bytes;                               ///< device memory of all of them
  std::unique_ptr<kernels::Buffer> embedding_memory, norm_memory;
};

/// Bytes that LoadWeights will hold, the most host memory that it needs besides while it runs, and what layers in codes
/// need while they work.
struct WeightMemory {
  WeightBytes device;
  int64_t scratch_bytes = 0;
  kernels::CodeRooms codes;
};
WeightMemory PlanWeightMemory(const ModelConfig& config, const RankPlace& place, const WeightSource& source,
                              const kernels::OpsTraits& traits);

/// Reads and packs the rank's part of every tensor; the source has been checked. Progress is "pack", by elements.
/// Cancelled: `given_up` became true.
absl::StatusOr<ModelWeights> LoadWeights(const ModelConfig& config, const RankPlace& place, const WeightSource& source,
                                         kernels::Ops& ops, const LoadProgress& progress,
                                         const std::atomic<bool>* given_up = nullptr);

}  // namespace baton::engine
