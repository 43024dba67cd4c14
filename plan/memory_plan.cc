#include "plan/memory_plan.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/host_memory.h"
#include "common/status.h"
#include "engine/model/kv_groups.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/device_rooms.h"
#include "worker/process/kv_budget.h"
#include "worker/process/text_memory.h"
#include "worker/ranks/rank.h"

namespace baton::plan {
namespace {

using worker::WorkerConfig;

// A GPU's are known without one: it computes in bf16 and looks up no packed rows.
absl::StatusOr<kernels::OpsTraits> TraitsOf(const WorkerConfig& config) {
  if (config.device != "cpu") {
    kernels::OpsTraits traits;
    traits.compute = DType::kBF16;
    traits.kv = config.KvCacheDType().value_or(DType::kBF16);
    traits.device_panels = true;
    traits.work_bytes = kernels::kDeviceWorkBytes;
    if (!config.deterministic) traits.library_bytes = kernels::kLibraryBytes;
    return traits;
  }
  kernels::CpuOpsConfig ops_config = worker::OpsConfigOf(config);
  ops_config.threads = 1;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Ops> ops, kernels::MakeCpuOps(ops_config));
  return ops->traits();
}

absl::StatusOr<int64_t> AvailableTo(const WorkerConfig& config, std::optional<int64_t> memory_bytes) {
  if (memory_bytes) return *memory_bytes;
  if (config.device != "cpu") {
    return absl::FailedPreconditionError(
        StrCat("--device ", config.device, ": give the GPU's memory with --memory (80 GiB: --memory 80GiB)"));
  }
  if (const auto here = AvailableMemoryBytes()) return *here;
  return absl::FailedPreconditionError("the free memory of this machine is not known: give it with --memory");
}

absl::Status TooMuch(const WorkerConfig& config, const std::string& who, int64_t need, int64_t available) {
  return absl::ResourceExhaustedError(absl::StrFormat(
      "%s%s needs %d bytes (%.2f GiB), %d bytes (%.2f GiB) are available: %d bytes (%.2f GiB) too many", config.model,
      who, need, GiB(need), available, GiB(available), need - available, GiB(need - available)));
}

// A rank's weights and what steps need, or what loading needs of the same memory, as the loader checks it: ranks load
// at once.
absl::Status CheckRanks(const WorkerConfig& config, const MemoryPlan& plan) {
  const int64_t share = plan.available_bytes / config.ranks();
  for (const RankPlan& rank : plan.ranks) {
    const int64_t scratch = config.device == "cpu" ? rank.scratch_bytes : 0;  // else the host's, which is not known
    const int64_t need = rank.memory.Total() + std::max<int64_t>(0, scratch - rank.memory.workspace);
    if (need > share) return TooMuch(config, config.ranks() > 1 ? StrCat(": ", rank.place.Name()) : "", need, share);
  }
  return absl::OkStatus();
}

// What the worker makes of its memory once all ranks are loaded.
absl::StatusOr<engine::BlockBudget> BlocksOf(const WorkerConfig& config, const MemoryPlan& plan, const KvLayout& kept) {
  if (config.device == "cpu") {
    const int64_t left = std::max<int64_t>(plan.available_bytes - plan.Total(), 0);
    return worker::PlanKv(config, kept, worker::KvBytes(config, kept, plan.max_model_len, left), plan.max_model_len);
  }
  const int64_t share = plan.available_bytes / config.ranks();
  std::vector<kernels::DeviceMemory> memory;
  for (const RankPlan& rank : plan.ranks) {
    memory.push_back({.free_bytes = share - rank.memory.Total(), .total_bytes = share});
  }
  return worker::PlanKvOnDevices(config, memory, plan.model, plan.kv_layout, plan.max_model_len);
}

absl::Status AddKv(const WorkerConfig& config, MemoryPlan& plan) {
  const KvLayout& layout = plan.kv_layout;
  const KvLayout kept = worker::KeptLayout(plan.model, plan.ranks[0].place, layout);
  BATON_ASSIGN_OR_RETURN(const engine::BlockBudget blocks, BlocksOf(config, plan, kept));
  plan.kv_budget = blocks.bytes;
  plan.kv_tokens = blocks.tokens;
  for (size_t g = 0; g < kept.groups.size(); ++g) {
    const KvGroup& group = kept.groups[g];
    const int32_t many[] = {64};  // groups end on 64 bytes, blocks need not
    plan.kv.push_back({.window_tokens = group.window_tokens,
                       .layers = static_cast<int>(group.layers.size()),
                       .tokens_per_block = group.tokens_per_block,
                       .block_bytes = engine::KvMemory::Bytes({.groups = {group}}, many) / many[0],
                       .blocks = blocks.num_blocks[g]});
  }
  for (RankPlan& rank : plan.ranks) {
    rank.kv_bytes = engine::KvMemory::Bytes(engine::RankKvLayout(layout, engine::ShapeOf(plan.model, rank.place)),
                                            blocks.num_blocks);
  }
  const int64_t all = plan.Total() + plan.text_bytes;
  if (all > plan.available_bytes) return TooMuch(config, "", all, plan.available_bytes);
  return absl::OkStatus();
}

}  // namespace

int64_t MemoryPlan::Total() const {
  int64_t sum = 0;
  for (const RankPlan& rank : ranks) sum += rank.Total();
  return sum;
}

absl::StatusOr<MemoryPlan> PlanMemory(const WorkerConfig& config, std::optional<int64_t> memory_bytes) {
  MemoryPlan plan;
  BATON_ASSIGN_OR_RETURN(const kernels::OpsTraits traits, TraitsOf(config));
  BATON_ASSIGN_OR_RETURN(plan.available_bytes, AvailableTo(config, memory_bytes));
  plan.compute = traits.compute;
  plan.kv_dtype = traits.kv;
  for (int rank = 0; rank < config.ranks(); ++rank) {
    const engine::RankPlace place = worker::PlaceOf(config, rank);
    BATON_ASSIGN_OR_RETURN(engine::RankMemory memory, engine::PlanRankMemory(worker::SourceOf(config, place), traits,
                                                                             config.max_num_batched_tokens));
    plan.ranks.push_back({.place = place,
                          .memory = memory.memory,
                          .scratch_bytes = memory.scratch_bytes,
                          .pinned_bytes = memory.pinned_bytes});
    if (rank > 0) continue;
    plan.model = std::move(memory.config);
    plan.kv_layout = std::move(memory.kv_layout);
  }
  plan.max_model_len = config.max_model_len > 0 ? config.max_model_len : plan.model.max_position_embeddings;
  plan.text_bytes = worker::TextBytes(config, plan.model.vocab_size);
  plan.landing_bytes = config.landing_slots * config.LandingSlotBytes();
  BATON_RETURN_IF_ERROR(CheckRanks(config, plan));
  BATON_RETURN_IF_ERROR(AddKv(config, plan));
  return plan;
}

}  // namespace baton::plan
