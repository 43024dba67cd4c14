#include <algorithm>
#include <atomic>

#include "router/policy/scorer.h"

namespace baton::router {
namespace {

constexpr double kUnknownPrefillRate = 1000;  // tokens/s, until the handshake or a report says better
constexpr double kPressureFrom = 0.9;         // of the KV blocks in use

Cost CostOf(const Candidate& c, uint32_t prompt_tokens, double lambda) {
  const double ms_per_token = 1000 / (c.prefill_tokens_per_s > 0 ? c.prefill_tokens_per_s : kUnknownPrefillRate);
  const double uncached = prompt_tokens > c.cached_tokens ? prompt_tokens - c.cached_tokens : 1;
  Cost cost{c.id};
  cost.queue_ms = c.queued_tokens * ms_per_token;
  cost.prefill_ms = (1 + lambda) * uncached * ms_per_token;
  const double slots = std::max(1, c.max_num_seqs);
  const double beyond = std::max(0.0, c.running + 1 - slots);  // sequences that must end before this one decodes
  cost.decode_slowdown_ms = c.decode_step_ms * (c.running / slots + 8 * beyond);
  const double over = std::max(0.0, c.kv_used_fraction - kPressureFrom) / (1 - kPressureFrom);
  cost.pressure_ms = over * (prompt_tokens * ms_per_token + c.decode_step_ms);
  cost.total_ms = cost.queue_ms + cost.prefill_ms + cost.decode_slowdown_ms + cost.pressure_ms;
  return cost;
}

class PredictedTime final : public Scorer {
 public:
  explicit PredictedTime(double lambda) : lambda_(lambda) {}

  size_t Choose(absl::Span<const Candidate> candidates, uint32_t prompt_tokens) override {
    return Best(candidates, prompt_tokens, turn_.fetch_add(1, std::memory_order_relaxed), nullptr);
  }
  std::vector<Cost> Table(absl::Span<const Candidate> candidates, uint32_t prompt_tokens,
                          size_t* chosen) const override {
    std::vector<Cost> table(candidates.size());
    *chosen = Best(candidates, prompt_tokens, turn_.load(std::memory_order_relaxed), &table);
    return table;
  }

 private:
  size_t Best(absl::Span<const Candidate> candidates, uint32_t prompt_tokens, size_t start,
              std::vector<Cost>* table) const {
    size_t best = 0;
    double best_ms = 0;
    for (size_t k = 0; k < candidates.size(); ++k) {
      const size_t i = (start + k) % candidates.size();
      const Cost cost = CostOf(candidates[i], prompt_tokens, lambda_);
      if (k == 0 || cost.total_ms < best_ms) {
        best = i;
        best_ms = cost.total_ms;
      }
      if (table) (*table)[i] = cost;
    }
    return best;
  }

  const double lambda_;
  std::atomic<size_t> turn_{0};
};

}  // namespace

std::unique_ptr<Scorer> MakePredictedTime(double lambda) { return std::make_unique<PredictedTime>(lambda); }

}  // namespace baton::router
