#include <array>

#include "router/policy/policies.h"
#include "router/policy/staged_scorer.h"

namespace baton::router {
namespace {

// A number that looks random, of one that counts: SplitMix64's mixing (Steele, Lea and Flood, 2014).
uint64_t Mixed(uint64_t turn) {
  turn = (turn + 1) * 0x9e3779b97f4a7c15ull;
  turn = (turn ^ (turn >> 30)) * 0xbf58476d1ce4e5b9ull;
  turn = (turn ^ (turn >> 27)) * 0x94d049bb133111ebull;
  return turn ^ (turn >> 31);
}

class PowerOfTwo final : public StagedScorer {
 public:
  using StagedScorer::StagedScorer;

 private:
  size_t Pick(const RouteQuestion& question, absl::Span<const size_t> among, uint64_t turn) const override {
    const size_t n = among.size();
    if (n == 1) return among[0];
    const uint64_t draw = Mixed(turn);
    const size_t first = (draw & 0xffffffff) % n, second = (first + 1 + (draw >> 32) % (n - 1)) % n;
    return LeastInTurn(question.candidates, std::array{among[first], among[second]}, 0, WorkAhead);
  }
};

}  // namespace

std::unique_ptr<Scorer> MakePowerOfTwo(double lambda) { return std::make_unique<PowerOfTwo>(lambda); }

}  // namespace baton::router
