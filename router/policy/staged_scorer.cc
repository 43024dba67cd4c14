#include "router/policy/staged_scorer.h"

#include <algorithm>

#include "router/policy/predicted_time_cost.h"

namespace baton::router {
namespace {

// Who may decode: where the answer has numerics so far, those of them, and others only if none has and others may.
std::vector<size_t> Decoders(const RouteQuestion& question) {
  std::vector<size_t> all, alike;
  for (size_t i = 0; i < question.candidates.size(); ++i) {
    if (question.candidates[i].role == WorkerRole::kPrefill) continue;
    all.push_back(i);
    if (question.candidates[i].numerics == question.numerics.so_far) alike.push_back(i);
  }
  if (question.numerics.so_far.empty()) return all;
  return alike.empty() && !question.numerics.require ? all : alike;
}

// Where the answer has numerics so far that not every decode worker finds a prefill worker of, who may decode depends
// on each pair.
bool DependsOnPairs(const RouteQuestion& question) {
  const NumericsRule& rule = question.numerics;
  if (rule.so_far.empty() || rule.require) return false;
  return std::ranges::any_of(question.candidates, [&](const Candidate& decode) {
    return decode.role == WorkerRole::kDecode && std::ranges::none_of(question.candidates, [&](const Candidate& c) {
             return MakePair(c, decode) && c.numerics == rule.so_far;
           });
  });
}

}  // namespace

std::optional<RouteOption> StagedScorer::Answer(const RouteQuestion& question) {
  if (!ManyPairs(question) || DependsOnPairs(question)) return Scorer::Answer(question);
  const uint64_t turn = turn_.fetch_add(1, std::memory_order_relaxed);
  const std::vector<size_t> decoders = Decoders(question);
  if (decoders.empty()) return std::nullopt;
  const std::vector<RouteOption> options = OptionsWith(question, Pick(question, decoders, turn));
  if (options.empty()) return std::nullopt;
  return options[ChosenOf(question, options, turn)];
}

size_t StagedScorer::Choose(const RouteQuestion& question, absl::Span<const RouteOption> options) {
  return ChosenOf(question, options, turn_.fetch_add(1, std::memory_order_relaxed));
}

std::vector<Cost> StagedScorer::Table(const RouteQuestion& question, absl::Span<const RouteOption> options,
                                      size_t* chosen) const {
  *chosen = ChosenOf(question, options, turn_.load(std::memory_order_relaxed));
  return PredictedCosts(question, options, lambda_);
}

size_t StagedScorer::ChosenOf(const RouteQuestion& question, absl::Span<const RouteOption> options,
                              uint64_t turn) const {
  std::vector<size_t> workers, prefills;
  for (const RouteOption& o : options) {
    if (std::ranges::find(workers, o.worker) == workers.end()) workers.push_back(o.worker);
  }
  const size_t worker = Pick(question, workers, turn);
  for (size_t i = 0; i < options.size(); ++i) {
    if (options[i].worker != worker) continue;
    if (!options[i].prefill) return i;  // it computes the prompt itself
    prefills.push_back(*options[i].prefill);
  }
  const size_t prefill = Pick(question, prefills, turn);
  const auto pair = [&](const RouteOption& o) { return o.worker == worker && o.prefill == prefill; };
  return static_cast<size_t>(std::ranges::find_if(options, pair) - options.begin());
}

std::pair<double, double> WorkAhead(const Candidate& c) {
  const double queued_ms = c.queued_tokens * MsPerPrefillToken(c);
  if (c.role == WorkerRole::kPrefill) return {queued_ms, c.running};
  return {static_cast<double>(c.running) / std::max(1, c.max_num_seqs), queued_ms};
}

}  // namespace baton::router
