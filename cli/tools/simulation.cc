#include "cli/tools/simulation.h"

#include "common/status.h"
#include "common/str_cat.h"

namespace baton::cli {
namespace {

sim::PlannedWorker WorkerOf(const worker::WorkerConfig& config, const plan::MemoryPlan& memory) {
  sim::PlannedWorker out;
  out.scheduler.max_model_len = static_cast<int32_t>(memory.max_model_len);
  out.scheduler.vocab_size = engine::kFakeVocab;
  out.scheduler.max_num_seqs = config.max_num_seqs;
  out.scheduler.max_num_batched_tokens = config.max_num_batched_tokens;
  out.scheduler.max_step_ms = config.max_step_ms;
  out.scheduler.max_stall_ms = config.max_stall_ms;
  out.scheduler.max_waiting_requests = config.max_waiting_requests;
  out.scheduler.max_waiting_tokens = config.max_waiting_tokens;
  out.block_size = config.block_size;
  out.blocks = static_cast<int32_t>(memory.kv_tokens / config.block_size);
  out.prefix_caching = config.enable_prefix_caching;
  out.layout = memory.kv_layout;
  return out;
}

}  // namespace

absl::Status UseTrace(const std::string& path, load::BenchOptions& bench) {
  if (path.empty()) return absl::OkStatus();
  if (!bench.dataset_path.empty())
    return absl::InvalidArgumentError(
        StrCat("--trace ", path, " and --dataset-path ", bench.dataset_path, " both name a trace: leave one out"));
  bench.dataset_path = path;
  bench.dataset_name = "mooncake";
  bench.any_trace = true;
  return absl::OkStatus();
}

sim::PlannedTerms TermsOf(const worker::WorkerConfig& config, const plan::MemoryPlan& memory,
                          const PlannedMachine& machine, const router::RouterConfig& router, uint64_t seed) {
  sim::PlannedTerms terms;
  terms.seed = seed;
  terms.worker = WorkerOf(config, memory);
  terms.link_bytes_per_s = machine.link * 1e9;
  terms.kv_bytes_per_token = memory.kv_layout.BytesPerToken();
  terms.router = router;
  return terms;
}

}  // namespace baton::cli
