#include <algorithm>
#include <atomic>

#include "router/policy/policies.h"

namespace baton::router {
namespace {

constexpr double kUnknownPrefillRate = 1000;  // tokens/s, until the handshake or a report says better
constexpr double kPressureFrom = 0.9;         // of the KV blocks in use

double MsPerToken(const Candidate& c) {
  return 1000 / (c.prefill_tokens_per_s > 0 ? c.prefill_tokens_per_s : kUnknownPrefillRate);
}

// At least one token is computed, for its logits.
double Uncached(const Candidate& c, uint32_t prompt_tokens) {
  return prompt_tokens > c.cached_tokens ? prompt_tokens - c.cached_tokens : 1;
}

double DecodeSlowdownMs(const Candidate& c) {
  const double slots = std::max(1, c.max_num_seqs);
  const double beyond = std::max(0.0, c.running + 1 - slots);  // sequences that must end before this one decodes
  return c.decode_step_ms * (c.running / slots + 8 * beyond);
}

double PressureMs(const Candidate& c, uint32_t prompt_tokens) {
  const double over = std::max(0.0, c.kv_used_fraction - kPressureFrom) / (1 - kPressureFrom);
  return over * (prompt_tokens * MsPerToken(c) + c.decode_step_ms);
}

Cost CostOf(absl::Span<const Candidate> candidates, const RouteOption& option, uint32_t prompt_tokens, double lambda) {
  const Candidate& decodes = candidates[option.worker];
  const Candidate& prefills = candidates[option.prefill.value_or(option.worker)];
  Cost cost;
  cost.queue_ms = prefills.queued_tokens * MsPerToken(prefills);
  cost.prefill_ms = (1 + lambda) * Uncached(prefills, prompt_tokens) * MsPerToken(prefills);
  cost.decode_slowdown_ms = DecodeSlowdownMs(decodes);
  cost.pressure_ms = PressureMs(decodes, prompt_tokens);
  if (option.prefill) {
    cost.transfer_ms = 1000 * Uncached(decodes, prompt_tokens) / option.transfer_tokens_per_s;
    cost.handoff_ms = option.handoff_ms;
    cost.pressure_ms += PressureMs(prefills, prompt_tokens);
  }
  cost.total_ms =
      cost.queue_ms + cost.prefill_ms + cost.transfer_ms + cost.handoff_ms + cost.decode_slowdown_ms + cost.pressure_ms;
  return cost;
}

class PredictedTime final : public Scorer {
 public:
  explicit PredictedTime(double lambda) : lambda_(lambda) {}

  size_t Choose(absl::Span<const Candidate> candidates, absl::Span<const RouteOption> options,
                uint32_t prompt_tokens) override {
    return Best(Costs(candidates, options, prompt_tokens), turn_.fetch_add(1, std::memory_order_relaxed));
  }
  std::vector<Cost> Table(absl::Span<const Candidate> candidates, absl::Span<const RouteOption> options,
                          uint32_t prompt_tokens, size_t* chosen) const override {
    std::vector<Cost> table = Costs(candidates, options, prompt_tokens);
    *chosen = Best(table, turn_.load(std::memory_order_relaxed));
    return table;
  }

 private:
  std::vector<Cost> Costs(absl::Span<const Candidate> candidates, absl::Span<const RouteOption> options,
                          uint32_t prompt_tokens) const {
    std::vector<Cost> table;
    table.reserve(options.size());
    for (const RouteOption& option : options) table.push_back(CostOf(candidates, option, prompt_tokens, lambda_));
    return table;
  }
  // Of the cheapest ones, the one whose turn it is.
  static size_t Best(absl::Span<const Cost> table, size_t turn) {
    double least = table[0].total_ms;
    for (const Cost& cost : table) least = std::min(least, cost.total_ms);
    std::vector<size_t> cheapest;
    for (size_t i = 0; i < table.size(); ++i) {
      if (table[i].total_ms == least) cheapest.push_back(i);
    }
    return cheapest[turn % cheapest.size()];
  }

  const double lambda_;
  std::atomic<size_t> turn_{0};
};

}  // namespace

std::unique_ptr<Scorer> MakePredictedTime(double lambda) { return std::make_unique<PredictedTime>(lambda); }

}  // namespace baton::router
