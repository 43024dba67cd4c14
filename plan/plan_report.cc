#include "plan/plan_report.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/host_memory.h"
#include "common/json.h"
#include "common/str_cat.h"
#include "kernels/device_rooms.h"
#include "worker/process/text_memory.h"

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

/// A kind of kernels::DeviceRooms: its key, its words, its bytes.
struct RoomKind {
  const char *key, *what;
  int64_t kernels::DeviceRooms::* bytes;
};
constexpr RoomKind kRoomKinds[] = {
    {"inputs", "inputs of a step and attention's work lists", &kernels::DeviceRooms::inputs},
    {"partials", "partial results of attention", &kernels::DeviceRooms::partials},
    {"rotary", "tables of rotary angles", &kernels::DeviceRooms::rotary},
    {"sampling", "sampling", &kernels::DeviceRooms::sampling},
    {"codes", "layers in codes: their inputs and outputs in another form", &kernels::DeviceRooms::codes},
    {"scales", "scales of KV", &kernels::DeviceRooms::scales},
    {"sums", "sums over ranks", &kernels::DeviceRooms::sums},
    {"library", "products by cuBLASLt, where it is installed", &kernels::DeviceRooms::library}};

/// Of a worker of such a GPU that hands over; the plan's has both roles.
int64_t HandoffBytes(WorkerConfig config) {
  config.role = "prefill";
  return kernels::HandoffBytes(config.LentSlotBytes());
}

nlohmann::ordered_json WorkingJson(const kernels::DeviceRooms& rooms) {
  nlohmann::ordered_json out;
  for (const RoomKind& kind : kRoomKinds) out[kind.key] = rooms.*kind.bytes;
  out["total"] = rooms.Total();
  return out;
}

/// A line for each kind that there is, of the rank that takes the most of it.
std::string WorkingText(const MemoryPlan& plan) {
  std::string out = "working memory of a GPU's steps, MiB (of the rank that takes the most):\n";
  int64_t host = 0, pinned = 0;
  for (const RoomKind& kind : kRoomKinds) {
    int64_t most = 0;
    for (const RankPlan& rank : plan.ranks) most = std::max(most, rank.memory.rooms.*kind.bytes);
    if (most > 0) absl::StrAppendFormat(&out, "  %-60s %10.2f\n", kind.what, MiB(most));
  }
  for (const RankPlan& rank : plan.ranks) {
    host = std::max(host, rank.scratch_bytes);
    pinned = std::max(pinned, rank.pinned_bytes);
  }
  absl::StrAppendFormat(&out,
                        "of the host's memory each rank takes up to %.2f MiB while it loads, and keeps %.2f MiB pinned "
                        "for steps\n\n",
                        MiB(host), MiB(pinned));
  return out;
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
          {"working", WorkingJson(rank.memory.rooms)},
          {"loading", rank.scratch_bytes},
          {"pinned", rank.pinned_bytes},
          {"kv", rank.kv_bytes},
          {"total", rank.Total()}};
}

/// Whether the advice is the same at both ends of every range.
std::string AdviceSurety(const RooflinePlan& plan) {
  const auto says = [&](const Roofline& r) {
    return r.break_even_tokens && static_cast<double>(plan.load.isl - plan.load.prefix) >= *r.break_even_tokens;
  };
  const auto other =
      std::ranges::count_if(plan.corners, [&](const Roofline& r) { return says(r) != says(plan.times()); });
  return other == 0 ? ""
                    : absl::StrFormat(" (not sure: otherwise at %d of %d ends of the ranges)", other,
                                      std::ssize(plan.corners) - 1);
}

std::string RooflineText(const RooflinePlan& plan) {
  const Roofline& r = plan.times();
  const Load& load = plan.load;
  const auto range = [&](auto of, int digits) { return RangeText(RangeOf(plan.corners, of), digits); };
  std::string out = absl::StrFormat(
      "\nlimits for prompts of %d tokens (%d cached) and answers of %d; %s:\n", load.isl, load.prefix, load.osl,
      plan.machine.prefill_factor == 1 && plan.machine.decode_factor == 1 ? "not calibrated, real steps are slower"
                                                                          : "calibrated");
  absl::StrAppendFormat(&out, "prefill: %.1f tokens/s%s by %s; TTFT %.2f ms%s without a queue, goal %.0f ms%s\n",
                        r.prefill_tokens_per_s, range(&Roofline::prefill_tokens_per_s, 1), LimitName(r.prefill_limit),
                        r.prefill_ms, range(&Roofline::prefill_ms, 2), load.ttft_ms, r.meets_ttft ? "" : ": MISSED");
  absl::StrAppendFormat(
      &out, "decode: %.1f tokens/s%s by %s, %d sequences a step%s (no more by %s); TPOT %.2f ms%s, goal %.0f ms%s\n",
      r.decode_tokens_per_s, range(&Roofline::decode_tokens_per_s, 1), LimitName(r.decode_limit), r.batch,
      range([](const Roofline& c) { return static_cast<double>(c.batch); }, 0), BatchLimitName(r.batch_limit),
      r.decode_ms, range(&Roofline::decode_ms, 2), load.tpot_ms, r.meets_tpot ? "" : ": MISSED");
  absl::StrAppendFormat(&out, "ratio: %.2f%s decode workers keep up with one prefill worker\n", r.decode_per_prefill,
                        range(&Roofline::decode_per_prefill, 2));
  absl::StrAppendFormat(&out, "handoff: %d bytes of KV a prompt", r.transfer_bytes);
  if (r.transfer_ms) {
    absl::StrAppendFormat(&out, ", %.2f ms%s", *r.transfer_ms,
                          range([](const Roofline& c) { return *c.transfer_ms; }, 2));
  }
  out += "\n";
  if (r.transfer_ms) out += Advice(r, plan.machine, load) + AdviceSurety(plan) + "\n";
  return out;
}

nlohmann::ordered_json RangesJson(const std::vector<Roofline>& corners) {
  nlohmann::ordered_json out;
  const auto add = [&](const char* key, auto of) {
    const Range range = RangeOf(corners, of);
    out[key] = {range.low, range.high};
  };
  add("prefill_tokens_per_s", &Roofline::prefill_tokens_per_s);
  add("ttft_ms", &Roofline::prefill_ms);
  add("decode_tokens_per_s", &Roofline::decode_tokens_per_s);
  add("batch", [](const Roofline& c) { return static_cast<double>(c.batch); });
  add("tpot_ms", &Roofline::decode_ms);
  add("decode_per_prefill", &Roofline::decode_per_prefill);
  if (corners[0].transfer_ms) add("transfer_ms", [](const Roofline& c) { return *c.transfer_ms; });
  return out;
}

nlohmann::ordered_json RooflineJson(const RooflinePlan& plan) {
  const Roofline& r = plan.times();
  nlohmann::ordered_json json = {{"prefill_tokens_per_s", r.prefill_tokens_per_s},
                                 {"prefill_limit", LimitName(r.prefill_limit)},
                                 {"ttft_ms", r.prefill_ms},
                                 {"meets_ttft", r.meets_ttft},
                                 {"decode_tokens_per_s", r.decode_tokens_per_s},
                                 {"decode_limit", LimitName(r.decode_limit)},
                                 {"batch", r.batch},
                                 {"batch_limit", BatchLimitName(r.batch_limit)},
                                 {"tpot_ms", r.decode_ms},
                                 {"meets_tpot", r.meets_tpot},
                                 {"decode_per_prefill", r.decode_per_prefill},
                                 {"transfer_bytes", r.transfer_bytes},
                                 {"transfer_ms", nullptr},
                                 {"break_even_tokens", nullptr},
                                 {"advice", Advice(r, plan.machine, plan.load)},
                                 {"ranges", RangesJson(plan.corners)}};
  if (r.transfer_ms) json["transfer_ms"] = *r.transfer_ms;
  if (r.break_even_tokens) json["break_even_tokens"] = *r.break_even_tokens;
  return json;
}

}  // namespace

std::string PlanText(const WorkerConfig& config, const MemoryPlan& plan, const std::optional<RooflinePlan>& roofline) {
  std::string out = absl::StrFormat("%s: %s, context %d tokens; computes in %s, keeps KV in %s, device %s\n\n",
                                    config.model, plan.model.family, plan.model.max_position_embeddings,
                                    DTypeName(plan.compute), DTypeName(plan.kv_dtype), config.device);
  absl::StrAppendFormat(&out, "%-36s %10s %10s %10s %8s %10s %10s %10s %10s %10s\n", "MiB", "embedding", "attention",
                        "mlp", "norms", "head", "workspace", "working", "KV", "all");
  for (const RankPlan& rank : plan.ranks) {
    const engine::WeightBytes& w = rank.memory.weights;
    absl::StrAppendFormat(&out, "%-36s %10.2f %10.2f %10.2f %8.2f %10.2f %10.2f %10.2f %10.2f %10.2f\n",
                          rank.place.Name(), MiB(w.embedding), MiB(w.attention), MiB(w.mlp), MiB(w.norms), MiB(w.head),
                          MiB(rank.memory.workspace), MiB(rank.memory.rooms.Total()), MiB(rank.kv_bytes),
                          MiB(rank.Total()));
  }
  out += "\n";
  if (config.device != "cpu") out += WorkingText(plan);
  for (const KvKind& kind : plan.kv) {
    absl::StrAppendFormat(&out, "KV of %d layers with %s: %.1f bytes a token, %d blocks of %d tokens\n", kind.layers,
                          KindName(kind), kind.TokenBytes(), kind.blocks, kind.tokens_per_block);
  }
  absl::StrAppendFormat(&out, "fits: %d tokens of KV, %.2f sequences of %d tokens at once\n", plan.kv_tokens,
                        plan.Sequences(), plan.max_model_len);
  absl::StrAppendFormat(
      &out,
      "handed over: a decode worker has %.2f MiB of landing slots beside, which prefill workers of "
      "its machine map%s\n",
      MiB(plan.landing_bytes),
      config.device == "cpu"
          ? ""
          : StrCat(" and which a GPU's worker pins, once for each transport; a GPU with --role prefill or decode has "
                   "lists and buffers of ",
                   HandoffBytes(config), " bytes beside"));
  if (plan.text_bytes > 0)
    absl::StrAppendFormat(&out,
                          "grammars: a worker keeps about %.2f MiB of its tokenizer beside, %d bytes for each of %d "
                          "tokens (none with --skip-tokenizer-init)\n",
                          MiB(plan.text_bytes), worker::kTextBytesPerId, plan.model.vocab_size);
  const int64_t all = plan.Total() + plan.text_bytes;
  absl::StrAppendFormat(&out, "memory: %.2f GiB of %.2f GiB, %.2f GiB stay free for the process itself%s\n", GiB(all),
                        GiB(plan.available_bytes), GiB(plan.available_bytes - all),
                        config.device == "cpu" ? "" : ", the driver and what kernels keep for themselves");
  out += config.device == "cpu"
             ? "sure: these bytes are counted by the worker's own code, and are those that it prints "
               "at its start; its process takes at most 3 % and 64 MiB more\n"
             : "sure: weights, workspace, working memory and KV are counted by the worker's own code; the driver, the "
               "kernels' code and recorded steps take more, which is not known here\n";
  if (roofline) out += RooflineText(*roofline);
  return out;
}

std::string PlanJson(const WorkerConfig& config, const MemoryPlan& plan, const std::optional<RooflinePlan>& roofline) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array(), kinds = nlohmann::ordered_json::array();
  for (const RankPlan& rank : plan.ranks) ranks.push_back(RankJson(rank));
  for (const KvKind& kind : plan.kv) {
    kinds.push_back({{"window_tokens", kind.window_tokens},
                     {"layers", kind.layers},
                     {"bytes_per_token", kind.TokenBytes()},
                     {"tokens_per_block", kind.tokens_per_block},
                     {"blocks", kind.blocks}});
  }
  nlohmann::ordered_json json = {{"model", config.model},
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
                                 {"landing_bytes", plan.landing_bytes},
                                 {"text_bytes", plan.text_bytes},
                                 {"available_bytes", plan.available_bytes}};
  if (roofline) json["roofline"] = RooflineJson(*roofline);
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string ProposalsText(const std::vector<Proposal>& proposals) {
  std::string out = "limits without queues: requests/s, TTFT and TPOT in ms\n";
  int number = 0;
  for (const Proposal& p : proposals) {
    if (!p.why_not.empty()) {
      out += StrCat("WHY NOT ", p.Name(), ": ", p.why_not, "\n");
      continue;
    }
    absl::StrAppendFormat(&out, "%2d. %-52s %10.3f requests/s%s  TTFT %9.2f%s  TPOT %8.2f%s", ++number, p.Name(),
                          p.requests_per_s, RangeText(p.rate_range, 3), p.ttft_ms, RangeText(p.ttft_range, 2),
                          p.tpot_ms, RangeText(p.tpot_range, 2));
    if (p.prefill > 0) {
      absl::StrAppendFormat(&out, "  busy: prefill %.0f %%, decode %.0f %%", 100 * p.prefill_busy, 100 * p.decode_busy);
    }
    out += "\n";
  }
  if (number == 0) out += "no layout meets the goals\n";
  return out + OrderText(proposals);
}

std::string ProposalsJson(const std::vector<Proposal>& proposals) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Proposal& p : proposals) {
    all.push_back({{"tensor_parallel_size", p.tensor_size},
                   {"pipeline_parallel_size", p.stages},
                   {"both", p.both},
                   {"prefill", p.prefill},
                   {"decode", p.decode},
                   {"requests_per_s", p.requests_per_s},
                   {"ttft_ms", p.ttft_ms},
                   {"tpot_ms", p.tpot_ms},
                   {"ranges",
                    {{"requests_per_s", {p.rate_range.low, p.rate_range.high}},
                     {"ttft_ms", {p.ttft_range.low, p.ttft_range.high}},
                     {"tpot_ms", {p.tpot_range.low, p.tpot_range.high}}}},
                   {"prefill_busy", p.prefill_busy},
                   {"decode_busy", p.decode_busy},
                   {"why_not", p.why_not}});
  }
  return all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace baton::plan
