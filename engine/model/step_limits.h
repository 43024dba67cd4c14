// What one rank's steps of a model ask for at most, and what that takes of a device's memory. Pure; any thread.
#pragma once

#include <cstdint>

#include "common/kv_layout.h"
#include "engine/model/model.h"
#include "kernels/packed_size.h"

namespace baton::engine {

/// Bounds of one step, as ModelSource and LoadModel have them.
struct StepBounds {
  int64_t tokens = 0, sequences = 0, positions = 0, logit_rows = 0;
};

/// `layout`: of the whole model. Without recorded rows.
kernels::StepLimits StepLimitsOf(const ModelConfig& config, const RankPlace& place, const KvLayout& layout,
                                 const StepBounds& bounds);

/// Device memory beside weights, activations and KV that a rank takes for steps within `limits`, at `source.place`.
kernels::DeviceRooms RankRooms(const ModelSource& source, const kernels::StepLimits& limits, int64_t hidden_size,
                               const kernels::CodeRooms& codes, int64_t work_bytes);

}  // namespace baton::engine
