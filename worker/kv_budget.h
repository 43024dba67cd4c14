// How much memory the KV cache takes by default.
#pragma once

#include <cstdint>

#include "common/kv_layout.h"
#include "worker/worker_config.h"

namespace baton::worker {

/// MemAvailable of this machine, bytes; 0 when it cannot be read.
int64_t AvailableMemoryBytes();

/// --kv-cache-memory, or its default: min(what max_model_len × max_num_seqs tokens need, 40 % of `available_bytes` ÷ local
/// workers). At least one sequence is not guaranteed: PlanBlocks says so with both numbers.
int64_t KvBytes(const WorkerConfig& config, const KvLayout& layout, int64_t max_model_len, int64_t available_bytes);

}  // namespace baton::worker
