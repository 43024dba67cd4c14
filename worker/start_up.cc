#include "worker/start_up.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "common/host_memory.h"
#include "common/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "spdlog/spdlog.h"
#include "worker/kv_budget.h"
#include "worker/numerics_id.h"

namespace baton::worker {
namespace {

// The model's base name: "SmolLM2-135M-Instruct.Q4_1" of a file, the directory's name of a directory.
std::string BaseName(const std::string& path) {
  std::filesystem::path p(path);
  if (!p.has_filename()) p = p.parent_path();
  return p.extension() == ".gguf" ? p.stem().string() : p.filename().string();
}

kernels::CpuOpsConfig OpsConfig(const WorkerConfig& config) {
  kernels::CpuOpsConfig out;
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  out.threads = config.threads > 0 ? config.threads : std::max(1, cores / config.local_workers);
  if (config.dtype == "bfloat16") out.dtype = DType::kBF16;
  if (config.dtype == "float32") out.dtype = DType::kF32;
  if (config.kv_cache_dtype == "bfloat16") out.kv_dtype = DType::kBF16;
  if (config.kv_cache_dtype == "float32") out.kv_dtype = DType::kF32;
  return out;
}

// A step of one token through the whole model: pages are touched, primitives made.
absl::Status WarmUp(LoadedModel& loaded) {
  const std::vector<int32_t> token{0}, row_start{0, 1}, context{0}, table{0}, rows{0};
  engine::ForwardBatch batch{.tokens = token, .logit_rows = rows};
  for (size_t g = 0; g < loaded.model->kv_layout().groups.size(); ++g) {
    batch.groups.push_back({.row_start = row_start, .context = context, .block_tables = table, .table_stride = 1});
  }
  const std::atomic<bool> cancel{false};
  return loaded.model->Forward(batch, loaded.memory->groups(), cancel).status();
}

absl::Status AllocateKv(const WorkerConfig& config, LoadedModel& loaded) {
  const KvLayout& layout = loaded.model->kv_layout();
  const int64_t bytes = KvBytes(config, layout, loaded.max_model_len, AvailableMemoryBytes());
  BATON_ASSIGN_OR_RETURN(loaded.blocks, engine::PlanBlocks(layout, bytes, loaded.max_model_len, config.max_num_seqs,
                                                           config.max_num_batched_tokens));
  BATON_ASSIGN_OR_RETURN(loaded.memory, engine::KvMemory::Create(layout, loaded.blocks.num_blocks, *loaded.ops));
  spdlog::info("Available KV cache memory: {:.2f} GiB", GiB(loaded.blocks.bytes));
  spdlog::info("KV cache size: {} tokens", loaded.blocks.tokens);
  spdlog::info("Maximum concurrency for {} tokens per request: {:.2f}x", loaded.max_model_len,
               static_cast<double>(loaded.blocks.tokens) / loaded.max_model_len);
  return absl::OkStatus();
}

absl::Status LoadWeights(const WorkerConfig& config, StartUpProgress& progress, LoadedModel& loaded) {
  engine::ModelSource source{.path = config.model, .dummy_weights = config.load_format == "dummy", .dummy_seed = config.seed};
  source.block_size = config.block_size;
  const SteadyClock clock;
  TimePoint last = clock.Now();
  auto report = [&](std::string_view phase, double fraction) {
    progress.Set(phase, fraction);
    if (clock.Now() - last < std::chrono::seconds(5)) return;
    last = clock.Now();
    spdlog::info("worker: {} {:.0f} %", phase, 100 * fraction);
  };
  BATON_ASSIGN_OR_RETURN(loaded.model, engine::LoadModel(source, *loaded.ops, config.max_num_batched_tokens, report));
  const int64_t limit = loaded.model->config().max_position_embeddings;
  if (config.max_model_len > limit) {
    return absl::InvalidArgumentError(StrCat("--max-model-len ", config.max_model_len, " is longer than the model's context of ", limit, " tokens"));
  }
  loaded.max_model_len = static_cast<int32_t>(config.max_model_len > 0 ? config.max_model_len : limit);
  return absl::OkStatus();
}

}  // namespace

void StartUpProgress::Set(std::string_view phase, double fraction) {
  std::lock_guard lock(mutex_);
  view_ = {std::string(phase), fraction};
}

StartUpProgress::View StartUpProgress::Get() const {
  std::lock_guard lock(mutex_);
  return view_;
}

absl::StatusOr<LoadedModel> StartUp(const WorkerConfig& config, StartUpProgress& progress) {
  const SteadyClock clock;
  TimePoint phase_start = clock.Now();
  auto done = [&](std::string_view phase) {
    spdlog::info("worker: {} took {:.2f} s", phase, Seconds(clock.Now() - phase_start));
    phase_start = clock.Now();
  };
  LoadedModel loaded;
  loaded.name = config.served_model_name.empty() ? BaseName(config.model) : config.served_model_name.front();
  BATON_ASSIGN_OR_RETURN(loaded.ops, kernels::MakeCpuOps(OpsConfig(config)));
  const kernels::OpsTraits& traits = loaded.ops->traits();
  spdlog::info("worker: {} on {} threads, ISA {}, compute {}, KV {}", loaded.name, traits.threads, traits.isa,
               DTypeName(traits.compute), DTypeName(traits.kv));
  BATON_RETURN_IF_ERROR(LoadWeights(config, progress, loaded));
  spdlog::info("worker: weights take {:.2f} GiB", GiB(static_cast<int64_t>(loaded.model->weight_bytes())));
  done("loading the model");
  progress.Set("kv-allocate", 0);
  BATON_RETURN_IF_ERROR(AllocateKv(config, loaded));
  done("allocating KV");
  progress.Set("warm-up", 0);
  BATON_RETURN_IF_ERROR(WarmUp(loaded));
  done("warm-up");
  loaded.numerics_id = NumericsIdOf(loaded.model->config().digest, traits).id;
  return loaded;
}

}  // namespace baton::worker
