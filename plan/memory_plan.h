// The memory that a worker of a given configuration will take, from its model's headers: nothing is loaded. It calls
// what the worker's start-up calls, so the numbers are those that the worker prints. Bytes everywhere; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv_layout.h"
#include "engine/cache/kv_memory.h"
#include "engine/model/model_memory.h"
#include "engine/parallel/rank_place.h"
#include "worker/worker_config.h"

namespace baton::plan {

/// One rank's part.
struct RankPlan {
  engine::RankPlace place;
  engine::ModelMemory memory;
  int64_t scratch_bytes =
      0;                     ///< host memory besides, while it loads; on a CPU no more than KV and workspace take later
  int64_t pinned_bytes = 0;  ///< host memory besides, of a GPU's steps
  int64_t kv_bytes = 0;
  int64_t Total() const { return memory.Total() + kv_bytes; }
};

/// KV of one kind of attention layer, all ranks together.
struct KvKind {
  int window_tokens = 0;  ///< 0: full attention
  int layers = 0;
  int tokens_per_block = 0;
  int64_t block_bytes = 0;  ///< digests included
  int64_t blocks = 0;
  double TokenBytes() const { return static_cast<double>(block_bytes) / tokens_per_block; }
};

struct MemoryPlan {
  engine::ModelConfig model;
  DType compute = DType::kF32, kv_dtype = DType::kF32;
  int64_t max_model_len = 0;    ///< of a sequence, in tokens
  int64_t available_bytes = 0;  ///< to all ranks
  std::vector<RankPlan> ranks;
  KvLayout kv_layout;  ///< of the whole model
  std::vector<KvKind> kv;
  int64_t kv_budget = 0;  ///< --kv-cache-memory with which a worker has these blocks
  int64_t kv_tokens = 0;  ///< that fit
  /// Of a decode worker beside all this: the slots that prompts land in. Those that write them through shared memory
  /// map them as well.
  int64_t landing_bytes = 0;
  /// Of a worker beside all this, whatever its ranks: about what grammars keep of its tokenizer; 0 where it has none.
  int64_t text_bytes = 0;
  /// Of all ranks, without landing_bytes and text_bytes.
  int64_t Total() const;
  /// Sequences of max_model_len that fit at once.
  double Sequences() const { return static_cast<double>(kv_tokens) / static_cast<double>(max_model_len); }
};

/// `memory_bytes`: of the machine or GPU; unset: what is free on this machine, for a CPU only. Fails as a worker's
/// start with these flags would; ResourceExhausted says by how many bytes it does not fit.
absl::StatusOr<MemoryPlan> PlanMemory(const worker::WorkerConfig& config, std::optional<int64_t> memory_bytes);

}  // namespace baton::plan
