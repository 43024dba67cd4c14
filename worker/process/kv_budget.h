// The memory that the KV cache takes by default, and the blocks that it makes: by start-up and by a plan.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "common/kv_layout.h"
#include "engine/cache/kv_memory.h"
#include "engine/parallel/rank_place.h"
#include "kernels/ops.h"
#include "worker/worker_config.h"

namespace baton::worker {

/// --kv-cache-memory, or its default: min(what max_model_len × max_num_seqs tokens need, 40 % of `available_bytes` ÷
/// local workers; nothing: unknown, so no such cap). At least one sequence is not guaranteed: PlanBlocks says so with
/// both numbers.
int64_t KvBytes(const WorkerConfig& config, const KvLayout& layout, int64_t max_model_len,
                std::optional<int64_t> available_bytes);

/// On a device: --kv-cache-memory, or --gpu-memory-utilization of the memory that is free now. ResourceExhausted: more
/// is asked for than is free, with both numbers.
absl::StatusOr<int64_t> DeviceKvBytes(const WorkerConfig& config, const kernels::DeviceMemory& memory);

/// The blocks of all ranks where each has a device. `memory`: of each rank's, in order. `layout`: the model's. The rank
/// that has room for the fewest tokens, for it keeps the most layers or has the least memory, says how many blocks all
/// have.
absl::StatusOr<engine::BlockBudget> PlanKvOnDevices(const WorkerConfig& config,
                                                    std::span<const kernels::DeviceMemory> memory,
                                                    const engine::ModelConfig& model, const KvLayout& layout,
                                                    int64_t max_model_len);

/// The layout of all ranks together: a KV head that several ranks keep counts once for each of them. `place`: any
/// rank's. `layout`: the model's.
KvLayout KeptLayout(const engine::ModelConfig& model, const engine::RankPlace& place, const KvLayout& layout);

/// The blocks that `bytes` of KV memory of all ranks make.
absl::StatusOr<engine::BlockBudget> PlanKv(const WorkerConfig& config, const KvLayout& kept, int64_t bytes,
                                           int64_t max_model_len);

}  // namespace baton::worker
