#include "plan/roofline.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/str_cat.h"
#include "engine/model/kv_groups.h"

namespace baton::plan {
namespace {

// Rows of a step: each of `sequences` has `fresh` tokens after `context` others.
struct Step {
  int64_t sequences = 1, fresh = 1, context = 0;
  bool logits = true;
};

struct Cost {
  double bytes_s = 0, flops_s = 0, seconds = 0;
  Limit limit() const { return bytes_s >= flops_s ? Limit::kMemory : Limit::kCompute; }
  void Add(const Cost& more) {
    bytes_s += more.bytes_s;
    flops_s += more.flops_s;
    seconds += more.seconds;
  }
};

// Pairs of a new token and one that it sees, of one sequence; window 0: all before it and itself.
double SeenPairs(const Step& step, int window) {
  const auto n = static_cast<double>(step.fresh), c = static_cast<double>(step.context),
             w = static_cast<double>(window);
  const double all = n * c + n * (n + 1) / 2;
  if (window == 0 || c + n <= w) return all;
  if (c + 1 >= w) return n * w;
  const double growing = w - c;  // tokens that see less than a window
  return growing * c + growing * (growing + 1) / 2 + (n - growing) * w;
}

class StepTimes {
 public:
  StepTimes(const MemoryPlan& plan, const Machine& machine) : plan_(plan), machine_(machine) {}

  // Stages follow one another; the ranks of one work side by side.
  Cost Of(const Step& step) const {
    Cost sum;
    for (size_t first = 0; first < plan_.ranks.size();) {
      Cost slowest;
      const int stage = plan_.ranks[first].place.stage;
      for (; first < plan_.ranks.size() && plan_.ranks[first].place.stage == stage; ++first) {
        const Cost cost = OfRank(plan_.ranks[first], step);
        if (cost.seconds > slowest.seconds) slowest = cost;
      }
      sum.Add(slowest);
    }
    return sum;
  }

 private:
  Cost OfRank(const RankPlan& rank, const Step& step) const {
    const engine::ModelConfig& model = plan_.model;
    const engine::RankShape shape = engine::ShapeOf(model, rank.place);
    const engine::WeightBytes& weights = rank.memory.weights;
    const auto sequences = static_cast<double>(step.sequences);
    const double hidden = model.hidden_size, dim = model.head_dim, q = shape.q_heads.size() * dim;
    const double linear = hidden * (2 * q + 2 * shape.kv_heads.size() * dim + 3.0 * shape.inner.size());
    double bytes = static_cast<double>(weights.attention + weights.mlp + weights.norms);
    double flops = sequences * static_cast<double>(step.fresh) * 2 * linear * shape.layers.size();
    if (step.logits && weights.head > 0) {
      bytes += static_cast<double>(weights.head);
      flops += sequences * 2 * hidden * shape.vocab.size();
    }
    for (const KvGroup& group : engine::RankKvLayout(plan_.kv_layout, shape).groups) {
      const auto layers = static_cast<double>(group.layers.size());
      const int64_t seen = step.context + step.fresh;
      const int64_t read = group.window_tokens > 0 ? std::min<int64_t>(seen, group.window_tokens + step.fresh) : seen;
      bytes += sequences * static_cast<double>(read * group.BlockBytes() / group.tokens_per_block);
      flops += sequences * layers * 4 * q * SeenPairs(step, group.window_tokens);
    }
    Cost cost{.bytes_s = bytes / machine_.bytes_per_s, .flops_s = flops / machine_.flops};
    cost.seconds = std::max(cost.bytes_s, cost.flops_s);
    return cost;
  }

  const MemoryPlan& plan_;
  const Machine& machine_;
};

// A prompt in chunks of --max-num-batched-tokens.
Cost Prefill(const StepTimes& times, const Load& load, int64_t chunk) {
  Cost sum;
  for (int64_t at = load.prefix; at < load.isl; at += chunk) {
    const int64_t fresh = std::min(chunk, load.isl - at);
    sum.Add(times.Of({.fresh = fresh, .context = at, .logits = at + fresh == load.isl}));
  }
  return sum;
}

struct Batch {
  int64_t sequences = 1;
  BatchLimit limit = BatchLimit::kKvSpace;
  Cost step;
  double tpot_ms = 0;
};

// The most sequences whose steps keep to the goal; at least one, be it too slow. `prefill_ms`: what a step bears of
// prompts, for each of its sequences.
Batch BatchOf(const StepTimes& times, const MemoryPlan& plan, const worker::WorkerConfig& config, const Load& load,
              double prefill_ms) {
  const int64_t context = load.isl + load.osl / 2;
  const auto of = [&](int64_t sequences) {
    Batch batch{.sequences = sequences, .step = times.Of({.sequences = sequences, .context = context})};
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

const char* LimitName(Limit limit) { return limit == Limit::kMemory ? "memory bandwidth" : "compute"; }

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
  const Cost prefill = Prefill(times, load, config.max_num_batched_tokens);
  out.prefill_ms = prefill.seconds * 1e3;
  out.prefill_limit = prefill.limit();
  out.prefill_tokens_per_s = static_cast<double>(load.isl - load.prefix) / prefill.seconds;
  out.meets_ttft = out.prefill_ms <= load.ttft_ms;
  const Batch decode = BatchOf(times, plan, config, load, 0);
  out.batch = decode.sequences;
  out.batch_limit = decode.limit;
  out.decode_ms = decode.tpot_ms;
  out.decode_limit = decode.step.limit();
  out.decode_tokens_per_s = static_cast<double>(decode.sequences) / decode.step.seconds;
  out.meets_tpot = out.decode_ms <= load.tpot_ms;
  out.decode_per_prefill = out.PrefillRequestsPerS() / out.DecodeRequestsPerS(load);
  const auto osl = static_cast<double>(load.osl);
  const Batch both = BatchOf(times, plan, config, load, out.prefill_ms / osl);
  out.both_batch = both.sequences;
  out.both_tpot_ms = both.tpot_ms;
  out.both_requests_per_s = static_cast<double>(both.sequences) / osl / both.tpot_ms * 1e3;
  Handoff(plan, machine, load, out);
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
