// A model's weights on one device, packed; and what they will take before they are loaded.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model.h"
#include "engine/model/weight_source.h"
#include "kernels/ops.h"

namespace baton::engine {

/// One layer. Norm pointers are device memory of ModelWeights; null: the family has none.
struct LayerWeights {
  const float* input_norm = nullptr;               // [hidden]
  const float* post_attention_norm = nullptr;      // [hidden]
  const float* mlp_norm = nullptr;                 // [hidden]
  const float* post_mlp_norm = nullptr;            // [hidden]
  const float* query_norm = nullptr;               // [head_dim]
  const float* key_norm = nullptr;                 // [head_dim]
  std::unique_ptr<kernels::PackedLinear> qkv;      // [(q_heads + 2 kv_heads) · head_dim, hidden]
  std::unique_ptr<kernels::PackedLinear> output;   // [hidden, q_heads · head_dim]
  std::unique_ptr<kernels::PackedLinear> gate_up;  // [2 · intermediate, hidden]
  std::unique_ptr<kernels::PackedLinear> down;     // [hidden, intermediate]
};

/// Owned by the model; the Ops that packed them must outlive them.
struct ModelWeights {
  kernels::Tensor embedding;          // [vocab, hidden]
  const float* final_norm = nullptr;  // [hidden]
  std::vector<LayerWeights> layers;
  std::unique_ptr<kernels::PackedLinear> lm_head;  // [vocab, hidden]
  size_t bytes = 0;                                ///< device memory of all of them
  std::unique_ptr<kernels::Buffer> embedding_memory, norm_memory;
};

/// Bytes that LoadWeights will hold, and the most host memory that it needs besides while it runs.
struct WeightMemory {
  int64_t device_bytes = 0;
  int64_t scratch_bytes = 0;
};
WeightMemory PlanWeightMemory(const ModelConfig& config, const WeightSource& source, DType compute);

/// Reads and packs every tensor; the source has been checked. Progress is "pack", by bytes.
absl::StatusOr<ModelWeights> LoadWeights(const ModelConfig& config, const WeightSource& source, kernels::Ops& ops,
                                         const LoadProgress& progress);

}  // namespace baton::engine
