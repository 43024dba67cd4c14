#include "plan/plan_report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "common/host_memory.h"
#include "common/str_cat.h"

namespace baton::plan {
namespace {

using worker::WorkerConfig;

double MiB(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

int64_t KvBytes(const MemoryPlan& plan) {
  int64_t sum = 0;
  for (const RankPlan& rank : plan.ranks) sum += rank.kv_bytes;
  return sum;
}

std::string KindName(const KvKind& kind) {
  return kind.window_tokens > 0 ? StrCat("window of ", kind.window_tokens, " tokens") : "full attention";
}

nlohmann::ordered_json RankJson(const RankPlan& rank) {
  const engine::WeightBytes& w = rank.memory.weights;
  return {{"rank", rank.place.rank()},
          {"tensor_rank", rank.place.tensor_rank},
          {"stage", rank.place.stage},
          {"weights",
           {{"embedding", w.embedding},
            {"attention", w.attention},
            {"mlp", w.mlp},
            {"norms", w.norms},
            {"head", w.head},
            {"total", w.Total()}}},
          {"workspace", rank.memory.workspace},
          {"kv", rank.kv_bytes},
          {"total", rank.Total()}};
}

// As a shell reads it.
std::string Quoted(const std::string& text) {
  const bool plain = !text.empty() && text.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789_-./:@%+=,") == std::string::npos;
  if (plain) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

std::string PlanText(const WorkerConfig& config, const MemoryPlan& plan) {
  std::string out = absl::StrFormat("%s: %s, context %d tokens; computes in %s, keeps KV in %s, device %s\n\n",
                                    config.model, plan.model.family, plan.model.max_position_embeddings,
                                    DTypeName(plan.compute), DTypeName(plan.kv_dtype), config.device);
  absl::StrAppendFormat(&out, "%-36s %10s %10s %10s %8s %10s %10s %10s %10s\n", "MiB", "embedding", "attention", "mlp",
                        "norms", "head", "workspace", "KV", "all");
  for (const RankPlan& rank : plan.ranks) {
    const engine::WeightBytes& w = rank.memory.weights;
    absl::StrAppendFormat(&out, "%-36s %10.2f %10.2f %10.2f %8.2f %10.2f %10.2f %10.2f %10.2f\n", rank.place.Name(),
                          MiB(w.embedding), MiB(w.attention), MiB(w.mlp), MiB(w.norms), MiB(w.head),
                          MiB(rank.memory.workspace), MiB(rank.kv_bytes), MiB(rank.Total()));
  }
  out += "\n";
  for (const KvKind& kind : plan.kv) {
    absl::StrAppendFormat(&out, "KV of %d layers with %s: %.1f bytes a token, %d blocks of %d tokens\n", kind.layers,
                          KindName(kind), kind.TokenBytes(), kind.blocks, kind.tokens_per_block);
  }
  absl::StrAppendFormat(&out, "fits: %d tokens of KV, %.2f sequences of %d tokens at once\n", plan.kv_tokens,
                        plan.Sequences(), plan.max_model_len);
  absl::StrAppendFormat(&out, "memory: %.2f GiB of %.2f GiB, %.2f GiB stay free for the process itself%s\n",
                        GiB(plan.Total()), GiB(plan.available_bytes), GiB(plan.available_bytes - plan.Total()),
                        config.device == "cpu" ? "" : ", the driver and what kernels keep for themselves");
  return out;
}

std::string PlanJson(const WorkerConfig& config, const MemoryPlan& plan) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array(), kinds = nlohmann::ordered_json::array();
  for (const RankPlan& rank : plan.ranks) ranks.push_back(RankJson(rank));
  for (const KvKind& kind : plan.kv) {
    kinds.push_back({{"window_tokens", kind.window_tokens},
                     {"layers", kind.layers},
                     {"bytes_per_token", kind.TokenBytes()},
                     {"tokens_per_block", kind.tokens_per_block},
                     {"blocks", kind.blocks}});
  }
  const nlohmann::ordered_json json = {{"model", config.model},
                                       {"family", plan.model.family},
                                       {"device", config.device},
                                       {"dtype", std::string(DTypeName(plan.compute))},
                                       {"kv_cache_dtype", std::string(DTypeName(plan.kv_dtype))},
                                       {"tensor_parallel_size", config.tensor_parallel_size},
                                       {"pipeline_parallel_size", config.pipeline_parallel_size},
                                       {"max_model_len", plan.max_model_len},
                                       {"ranks", std::move(ranks)},
                                       {"kv_kinds", std::move(kinds)},
                                       {"kv_bytes", KvBytes(plan)},
                                       {"kv_tokens", plan.kv_tokens},
                                       {"sequences", plan.Sequences()},
                                       {"total_bytes", plan.Total()},
                                       {"available_bytes", plan.available_bytes}};
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string PlanFlags(const WorkerConfig& config, const MemoryPlan& plan) {
  std::string out =
      StrCat("--model ", Quoted(config.model), " --device ", config.device, " --dtype ", DTypeName(plan.compute),
             " --tensor-parallel-size ", config.tensor_parallel_size, " --pipeline-parallel-size ",
             config.pipeline_parallel_size, " --reduction-width ", config.reduction_width, " --kv-cache-dtype ",
             config.kv_cache_dtype, " --block-size ", config.block_size, " --max-model-len ", plan.max_model_len,
             " --max-num-seqs ", config.max_num_seqs, " --max-num-batched-tokens ", config.max_num_batched_tokens,
             " --kv-cache-memory ", plan.kv_budget);
  if (config.load_format != "auto") out += " --load-format " + config.load_format;
  return out + "\n";
}

}  // namespace baton::plan
