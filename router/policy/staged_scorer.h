// StagedScorer: policies that take the worker that decodes first and then, where it does not prefill itself, the one
// that prefills. A choice looks at each worker once, not at each pair.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "router/policy/scorer.h"

namespace baton::router {

class StagedScorer : public Scorer {
 public:
  /// `lambda` is for the costs of Table, by which a staged policy does not choose.
  explicit StagedScorer(double lambda) : lambda_(lambda) {}

  std::optional<RouteOption> Answer(const RouteQuestion& question) override;
  size_t Choose(const RouteQuestion& question, absl::Span<const RouteOption> options) override;
  std::vector<Cost> Table(const RouteQuestion& question, absl::Span<const RouteOption> options,
                          size_t* chosen) const override;

 protected:
  /// One of `among`: indices of question.candidates, at least one, each once, all of them prefill workers or none.
  /// `turn` counts the choices.
  virtual size_t Pick(const RouteQuestion& question, absl::Span<const size_t> among, uint64_t turn) const = 0;

 private:
  size_t ChosenOf(const RouteQuestion& question, absl::Span<const RouteOption> options, uint64_t turn) const;

  const double lambda_;
  std::atomic<uint64_t> turn_{0};
};

/// What stands before a request on a worker; less is better. A prefill worker: milliseconds of prompts, then requests.
/// One that decodes: the used part of its batch, then milliseconds of prompts.
std::pair<double, double> WorkAhead(const Candidate& c);

/// Of `among`, one whose rank(candidate) is the least; of equal ones the one whose turn it is.
template <class Rank>
size_t LeastInTurn(absl::Span<const Candidate> candidates, absl::Span<const size_t> among, uint64_t turn, Rank rank) {
  std::vector<size_t> least;
  for (const size_t i : among) {
    if (!least.empty() && rank(candidates[least[0]]) < rank(candidates[i])) continue;
    if (!least.empty() && rank(candidates[i]) < rank(candidates[least[0]])) least.clear();
    least.push_back(i);
  }
  return least[turn % least.size()];
}

}  // namespace baton::router
