#include <algorithm>
#include <tuple>

#include "router/policy/policies.h"
#include "router/policy/staged_scorer.h"

namespace baton::router {
namespace {

// Figures of SGLang's cache-aware policy (its cache_threshold, balance_abs_threshold and balance_rel_threshold).
constexpr double kLeastHit = 0.5;  // of a prompt: less of it is shared by everybody and draws all to one worker
constexpr int kApart = 32;         // requests: so far apart, and
constexpr double kTimesAs = 1.1;   // so many times as many, means that the load decides

bool Balanced(absl::Span<const Candidate> candidates, absl::Span<const size_t> among) {
  const auto [least, most] = std::ranges::minmax(among, {}, [&](size_t i) { return candidates[i].running; });
  const int low = candidates[least].running, high = candidates[most].running;
  return high - low <= kApart || high <= kTimesAs * low;
}

class LongestPrefix final : public StagedScorer {
 public:
  using StagedScorer::StagedScorer;

 private:
  size_t Pick(const RouteQuestion& question, absl::Span<const size_t> among, uint64_t turn) const override {
    if (!Balanced(question.candidates, among)) return LeastInTurn(question.candidates, among, turn, WorkAhead);
    return LeastInTurn(question.candidates, among, turn, [&](const Candidate& c) {
      const bool hit = c.cached_tokens > kLeastHit * question.prompt_tokens;
      return std::tuple(hit ? -int64_t{c.cached_tokens} : 0, WorkAhead(c));
    });
  }
};

}  // namespace

std::unique_ptr<Scorer> MakeLongestPrefix(double lambda) { return std::make_unique<LongestPrefix>(lambda); }

}  // namespace baton::router
