#include "worker/process/kv_budget.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/host_memory.h"
#include "common/status.h"
#include "engine/model/kv_groups.h"
#include "worker/ranks/rank.h"

namespace baton::worker {

int64_t KvBytes(const WorkerConfig& config, const KvLayout& layout, int64_t max_model_len,
                std::optional<int64_t> available_bytes) {
  if (config.kv_cache_memory > 0) return config.kv_cache_memory;
  // One block more per sequence: a sequence rarely ends on a block's end.
  const int64_t tokens = (max_model_len + config.block_size) * config.max_num_seqs;
  const int64_t need = engine::BytesOfTokens(layout, tokens, static_cast<int32_t>(max_model_len), config.max_num_seqs,
                                             config.max_num_batched_tokens);
  return available_bytes ? std::min(need, *available_bytes / 5 * 2 / config.local_workers) : need;
}

absl::StatusOr<int64_t> DeviceKvBytes(const WorkerConfig& config, const kernels::DeviceMemory& memory) {
  if (config.kv_cache_memory == 0)
    return static_cast<int64_t>(static_cast<double>(memory.free_bytes) * config.gpu_memory_utilization);
  if (config.kv_cache_memory <= memory.free_bytes) return config.kv_cache_memory;
  return absl::ResourceExhaustedError(
      absl::StrFormat("--kv-cache-memory %d (%.2f GiB): %d bytes (%.2f GiB) of the GPU's %d are free beside weights "
                      "and what steps need",
                      config.kv_cache_memory, GiB(config.kv_cache_memory), memory.free_bytes, GiB(memory.free_bytes),
                      memory.total_bytes));
}

absl::StatusOr<engine::BlockBudget> PlanKvOnDevices(const WorkerConfig& config,
                                                    std::span<const kernels::DeviceMemory> memory,
                                                    const engine::ModelConfig& model, const KvLayout& layout,
                                                    int64_t max_model_len) {
  engine::BlockBudget fewest;
  std::vector<KvLayout> layouts;
  for (size_t rank = 0; rank < memory.size(); ++rank) {
    const engine::RankShape shape = engine::ShapeOf(model, PlaceOf(config, static_cast<int>(rank)));
    layouts.push_back(engine::RankKvLayout(layout, shape));
    WorkerConfig of_rank = config;
    of_rank.kv_cache_memory = config.kv_cache_memory / config.ranks();
    BATON_ASSIGN_OR_RETURN(const int64_t bytes, DeviceKvBytes(of_rank, memory[rank]));
    absl::StatusOr<engine::BlockBudget> planned = PlanKv(config, layouts.back(), bytes, max_model_len);
    if (!planned.ok() && config.kv_cache_memory == 0) {
      return absl::Status(
          planned.status().code(),
          StrCat(planned.status().message(), "; it is --gpu-memory-utilization ", config.gpu_memory_utilization,
                 " of the ", memory[rank].free_bytes, " bytes of the GPU's ", memory[rank].total_bytes,
                 " that are free beside weights and what steps need: others may have the rest"));
    }
    BATON_ASSIGN_OR_RETURN(engine::BlockBudget budget, std::move(planned));
    if (rank == 0 || budget.tokens < fewest.tokens) fewest = std::move(budget);
  }
  fewest.bytes = 0;
  for (const KvLayout& of_rank : layouts) fewest.bytes += engine::KvMemory::Bytes(of_rank, fewest.num_blocks);
  return fewest;
}

KvLayout KeptLayout(const engine::ModelConfig& model, const engine::RankPlace& place, const KvLayout& layout) {
  KvLayout kept = layout;
  const int heads = engine::ShapeOf(model, place).kv_heads.size() * place.tensor_size;
  for (KvGroup& group : kept.groups) {
    for (KvPlane& plane : group.planes) plane.heads = heads;
  }
  return kept;
}

absl::StatusOr<engine::BlockBudget> PlanKv(const WorkerConfig& config, const KvLayout& kept, int64_t bytes,
                                           int64_t max_model_len) {
  return engine::PlanBlocks(kept, bytes, static_cast<int32_t>(max_model_len), config.max_num_seqs,
                            config.max_num_batched_tokens);
}

}  // namespace baton::worker
