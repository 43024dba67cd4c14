#include <algorithm>
#include <atomic>

#include "router/policy/cheapest_option.h"
#include "router/policy/policies.h"
#include "router/policy/predicted_cost.h"

namespace baton::router {
namespace {

/// So many pairs are costed one by one in about 5 us.
constexpr size_t kFewPairs = 256;

bool ManyPairs(const RouteQuestion& question) {
  if (question.handoff == nullptr || question.handoff->met == nullptr) return false;
  size_t prefills = 0, decodes = 0;
  for (const Candidate& c : question.candidates) {
    prefills += c.role == WorkerRole::kPrefill ? 1 : 0;
    decodes += c.role == WorkerRole::kDecode ? 1 : 0;
  }
  return prefills * decodes > kFewPairs;
}

class PredictedTime final : public Scorer {
 public:
  explicit PredictedTime(double lambda) : lambda_(lambda) {}

  std::optional<RouteOption> Answer(const RouteQuestion& question) override {
    if (!ManyPairs(question)) return Scorer::Answer(question);
    return CheapestOption(question, lambda_, turn_.fetch_add(1, std::memory_order_relaxed));
  }
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
    for (const RouteOption& option : options)
      table.push_back(PredictedCost(candidates, option, prompt_tokens, lambda_));
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
