#include "plan/roofline.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "plan/step_times.h"

namespace baton::plan {
namespace {

// A prompt in chunks of --max-num-batched-tokens.
StepTime Prefill(const StepTimes& times, const Load& load, int64_t chunk) {
  StepTime sum;
  for (int64_t at = load.prefix; at < load.isl; at += chunk) {
    const int64_t fresh = std::min(chunk, load.isl - at);
    sum.Add(times.Of(StepRows{.fresh = fresh, .context = at, .logits = at + fresh == load.isl}));
  }
  return sum;
}

struct Batch {
  int64_t sequences = 1;
  BatchLimit limit = BatchLimit::kKvSpace;
  StepTime step;
  double tpot_ms = 0;
};

// The most sequences whose steps keep to the goal; at least one, be it too slow. `prefill_ms`: what a step bears of
// prompts, for each of its sequences.
Batch BatchOf(const StepTimes& times, const MemoryPlan& plan, const worker::WorkerConfig& config, const Load& load,
              double factor, double prefill_ms) {
  const int64_t context = load.isl + load.osl / 2;
  const auto of = [&](int64_t sequences) {
    Batch batch{.sequences = sequences, .step = times.Of(StepRows{.sequences = sequences, .context = context})};
    batch.step.seconds *= factor;
    batch.tpot_ms = batch.step.seconds * 1e3 + prefill_ms * static_cast<double>(sequences);
    return batch;
  };
  const int64_t in_memory = std::max<int64_t>(1, plan.kv_tokens / (load.isl + load.osl));
  const int64_t most = std::min<int64_t>(in_memory, config.max_num_seqs);
  int64_t low = 1, high = most;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (of(middle).tpot_ms <= load.tpot_ms) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  Batch out = of(low);
  out.limit = low < most                         ? BatchLimit::kTpot
              : in_memory <= config.max_num_seqs ? BatchLimit::kKvSpace
                                                 : BatchLimit::kMaxNumSeqs;
  return out;
}

void Handoff(const MemoryPlan& plan, const Machine& machine, const Load& load, Roofline& out) {
  for (const KvGroup& group : plan.kv_layout.groups) {
    const int64_t kept = group.window_tokens > 0 ? std::min<int64_t>(load.isl, group.window_tokens) : load.isl;
    const int64_t tokens = std::max<int64_t>(0, std::min(kept, load.isl - load.prefix));
    out.transfer_bytes += tokens * group.BlockBytes() / group.tokens_per_block;
  }
  if (machine.link_bytes_per_s <= 0) return;
  const double bytes_ms = static_cast<double>(out.transfer_bytes) / machine.link_bytes_per_s * 1e3;
  out.transfer_ms = bytes_ms + machine.handoff_ms;
  const auto tokens = static_cast<double>(load.isl - load.prefix);
  const double gain = (out.prefill_ms - bytes_ms) / tokens;  // ms a token
  if (gain > 0) out.break_even_tokens = machine.handoff_ms / gain;
}

}  // namespace

const char* BatchLimitName(BatchLimit limit) {
  switch (limit) {
    case BatchLimit::kKvSpace: return "KV space";
    case BatchLimit::kMaxNumSeqs: return "--max-num-seqs";
    case BatchLimit::kTpot: return "--tpot";
  }
  return "";
}

absl::StatusOr<Roofline> PlanRoofline(const worker::WorkerConfig& config, const MemoryPlan& plan,
                                      const Machine& machine, const Load& load) {
  if (load.isl + load.osl > plan.max_model_len) {
    return absl::FailedPreconditionError(StrCat("--isl ", load.isl, " and --osl ", load.osl, " are ",
                                                load.isl + load.osl, " tokens, a sequence has at most ",
                                                plan.max_model_len));
  }
  if (load.prefix >= load.isl) {
    return absl::FailedPreconditionError(
        StrCat("--prefix ", load.prefix, " leaves nothing of --isl ", load.isl, " to compute"));
  }
  Roofline out;
  const StepTimes times(plan, machine);
  StepTime prefill = Prefill(times, load, config.max_num_batched_tokens);
  prefill.seconds *= machine.prefill_factor;
  out.prefill_ms = prefill.seconds * 1e3;
  out.prefill_limit = prefill.limit();
  out.prefill_tokens_per_s = static_cast<double>(load.isl - load.prefix) / prefill.seconds;
  out.meets_ttft = out.prefill_ms <= load.ttft_ms;
  const Batch decode = BatchOf(times, plan, config, load, machine.decode_factor, 0);
  out.batch = decode.sequences;
  out.batch_limit = decode.limit;
  out.decode_ms = decode.tpot_ms;
  out.decode_limit = decode.step.limit();
  out.decode_tokens_per_s = static_cast<double>(decode.sequences) / decode.step.seconds;
  out.meets_tpot = out.decode_ms <= load.tpot_ms;
  out.decode_per_prefill = out.PrefillRequestsPerS() / out.DecodeRequestsPerS(load);
  const auto osl = static_cast<double>(load.osl);
  const Batch both = BatchOf(times, plan, config, load, machine.decode_factor, out.prefill_ms / osl);
  out.both_batch = both.sequences;
  out.both_tpot_ms = both.tpot_ms;
  out.both_requests_per_s = static_cast<double>(both.sequences) / osl / both.tpot_ms * 1e3;
  Handoff(plan, machine, load, out);
  return out;
}

absl::StatusOr<std::vector<Roofline>> PlanCorners(const worker::WorkerConfig& config, const MemoryPlan& plan,
                                                  const Machine& machine, const Load& load) {
  std::vector<Roofline> out;
  for (const Machine& corner : Corners(machine)) {
    BATON_ASSIGN_OR_RETURN(out.emplace_back(), PlanRoofline(config, plan, corner, load));
  }
  return out;
}

std::string Advice(const Roofline& roofline, const Machine& machine, const Load& load) {
  if (!roofline.transfer_ms) return "";
  const int64_t tokens = load.isl - load.prefix;
  if (!roofline.break_even_tokens) {
    return absl::StrFormat(
        "do not disaggregate: at %.2f GB/s the KV of %d tokens takes %.2f ms, computing them where they decode %.2f ms",
        machine.link_bytes_per_s / 1e9, tokens, *roofline.transfer_ms, roofline.prefill_ms);
  }
  if (static_cast<double>(tokens) < *roofline.break_even_tokens) {
    return absl::StrFormat("do not disaggregate: prompts have %d uncached tokens, a handoff gains from %.0f on", tokens,
                           *roofline.break_even_tokens);
  }
  return absl::StrFormat(
      "disaggregate: a handoff takes %.2f ms, computing %d tokens where they decode would hold its streams up for %.2f "
      "ms; it gains from %.0f tokens on",
      *roofline.transfer_ms, tokens, roofline.prefill_ms, *roofline.break_even_tokens);
}

}  // namespace baton::plan
