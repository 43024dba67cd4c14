// Rendezvous hashing (Thaler and Ravishankar, 1998): each worker draws a number for a session, the highest has it. A
// worker that comes or goes moves only the sessions that it gets or had, and all routers choose alike.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <utility>

#include "router/policy/policies.h"
#include "router/policy/staged_scorer.h"

namespace baton::router {
namespace {

class BySession final : public StagedScorer {
 public:
  explicit BySession(double lambda) : StagedScorer(lambda), without_session_(MakePredictedTime(lambda)) {}

  std::optional<RouteOption> Answer(const RouteQuestion& question) override {
    return question.session.empty() ? without_session_->Answer(question) : StagedScorer::Answer(question);
  }
  size_t Choose(const RouteQuestion& question, absl::Span<const RouteOption> options) override {
    return question.session.empty() ? without_session_->Choose(question, options)
                                    : StagedScorer::Choose(question, options);
  }
  std::vector<Cost> Table(const RouteQuestion& question, absl::Span<const RouteOption> options,
                          size_t* chosen) const override {
    return question.session.empty() ? without_session_->Table(question, options, chosen)
                                    : StagedScorer::Table(question, options, chosen);
  }

 private:
  size_t Pick(const RouteQuestion& question, absl::Span<const size_t> among, uint64_t) const override {
    const uint64_t session = XXH3_64bits(question.session.data(), question.session.size());
    std::pair<uint64_t, size_t> best{0, among[0]};
    for (const size_t i : among) {
      const std::string_view name = question.candidates[i].name;
      best = std::max(best, std::pair(uint64_t{XXH3_64bits_withSeed(name.data(), name.size(), session)}, i));
    }
    return best.second;
  }

  const std::unique_ptr<Scorer> without_session_;
};

}  // namespace

std::unique_ptr<Scorer> MakeBySession(double lambda) { return std::make_unique<BySession>(lambda); }

}  // namespace baton::router
