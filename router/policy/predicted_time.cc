#include <algorithm>
#include <atomic>

#include "router/policy/policies.h"
#include "router/policy/predicted_time_cost.h"
#include "router/policy/predicted_time_search.h"

namespace baton::router {
namespace {

class PredictedTime final : public Scorer {
 public:
  explicit PredictedTime(double lambda) : lambda_(lambda) {}

  std::optional<RouteOption> Answer(const RouteQuestion& question) override {
    // Where nobody makes a pair each worker is an option: they need not be written out either.
    const bool alone =
        std::ranges::all_of(question.candidates, [](const Candidate& c) { return c.role == WorkerRole::kBoth; });
    if (!alone && (!ManyPairs(question) || question.handoff->met == nullptr)) return Scorer::Answer(question);
    return CheapestOption(question, lambda_, turn_.fetch_add(1, std::memory_order_relaxed));
  }
  size_t Choose(const RouteQuestion& question, absl::Span<const RouteOption> options) override {
    return Best(PredictedCosts(question, options, lambda_), turn_.fetch_add(1, std::memory_order_relaxed));
  }
  std::vector<Cost> Table(const RouteQuestion& question, absl::Span<const RouteOption> options,
                          size_t* chosen) const override {
    std::vector<Cost> table = PredictedCosts(question, options, lambda_);
    *chosen = Best(table, turn_.load(std::memory_order_relaxed));
    return table;
  }

 private:
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
