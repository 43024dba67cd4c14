#include "plan/step_times.h"

#include <algorithm>

#include "engine/model/kv_groups.h"

namespace baton::plan {
namespace {

// Pairs of a new token and one that it sees, of one sequence; window 0: all before it and itself.
double SeenPairs(const StepRows& rows, int window) {
  const auto n = static_cast<double>(rows.fresh), c = static_cast<double>(rows.context),
             w = static_cast<double>(window);
  const double all = n * c + n * (n + 1) / 2;
  if (window == 0 || c + n <= w) return all;
  if (c + 1 >= w) return n * w;
  const double growing = w - c;  // tokens that see less than a window
  return growing * c + growing * (growing + 1) / 2 + (n - growing) * w;
}

}  // namespace

const char* LimitName(Limit limit) { return limit == Limit::kMemory ? "memory bandwidth" : "compute"; }

StepTimes::StepTimes(const MemoryPlan& plan, const Machine& machine) : machine_(machine) {
  const engine::ModelConfig& model = plan.model;
  const double hidden = model.hidden_size, dim = model.head_dim;
  for (const RankPlan& planned : plan.ranks) {
    const engine::RankShape shape = engine::ShapeOf(model, planned.place);
    const engine::WeightBytes& weights = planned.memory.weights;
    const double q = shape.q_heads.size() * dim;
    const double linear = hidden * (2 * q + 2 * shape.kv_heads.size() * dim + 3.0 * shape.inner.size());
    Rank rank{.stage = planned.place.stage,
              .weight_bytes = static_cast<double>(weights.attention + weights.mlp + weights.norms),
              .row_flops = 2 * linear * shape.layers.size()};
    if (weights.head > 0) {
      rank.head_bytes = static_cast<double>(weights.head);
      rank.head_flops = 2 * hidden * shape.vocab.size();
    }
    for (const KvGroup& group : engine::RankKvLayout(plan.kv_layout, shape).groups) {
      rank.kinds.push_back({.window = group.window_tokens,
                            .token_bytes = static_cast<double>(group.BlockBytes()) / group.tokens_per_block,
                            .pair_flops = 4 * q * static_cast<double>(group.layers.size())});
    }
    ranks_.push_back(std::move(rank));
  }
}

StepTime StepTimes::OfRank(const Rank& rank, std::span<const StepRows> rows) const {
  double bytes = rank.weight_bytes, flops = 0;
  bool logits = false;
  for (const StepRows& one : rows) {
    const auto sequences = static_cast<double>(one.sequences);
    flops += sequences * static_cast<double>(one.fresh) * rank.row_flops;
    if (one.logits) flops += sequences * rank.head_flops;
    logits |= one.logits;
    for (const Kind& kind : rank.kinds) {
      const int64_t seen = one.context + one.fresh;
      const int64_t read = kind.window > 0 ? std::min<int64_t>(seen, kind.window + one.fresh) : seen;
      bytes += sequences * static_cast<double>(read) * kind.token_bytes;
      flops += sequences * kind.pair_flops * SeenPairs(one, kind.window);
    }
  }
  if (logits) bytes += rank.head_bytes;
  StepTime time{.bytes_s = bytes / machine_.bytes_per_s, .flops_s = flops / machine_.flops};
  time.seconds = std::max(time.bytes_s, time.flops_s);
  return time;
}

StepTime StepTimes::Of(std::span<const StepRows> rows) const {
  StepTime sum;
  for (size_t first = 0; first < ranks_.size();) {
    StepTime slowest;
    const int stage = ranks_[first].stage;
    for (; first < ranks_.size() && ranks_[first].stage == stage; ++first) {
      const StepTime time = OfRank(ranks_[first], rows);
      if (time.seconds > slowest.seconds) slowest = time;
    }
    sum.Add(slowest);
  }
  return sum;
}

}  // namespace baton::plan
