#include "router/policy/policies.h"
#include "router/policy/staged_scorer.h"

namespace baton::router {
namespace {

class LeastLoaded final : public StagedScorer {
 public:
  using StagedScorer::StagedScorer;

 private:
  size_t Pick(const RouteQuestion& question, absl::Span<const size_t> among, uint64_t turn) const override {
    return LeastInTurn(question.candidates, among, turn, WorkAhead);
  }
};

}  // namespace

std::unique_ptr<Scorer> MakeLeastLoaded(double lambda) { return std::make_unique<LeastLoaded>(lambda); }

}  // namespace baton::router
