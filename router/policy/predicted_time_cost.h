// What "predicted time" takes an option to cost. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "router/policy/scorer.h"

namespace baton::router {

Cost PredictedCost(absl::Span<const Candidate> candidates, const RouteOption& option, uint32_t prompt_tokens,
                   double lambda);
/// Of each option, in their order.
std::vector<Cost> PredictedCosts(const RouteQuestion& question, absl::Span<const RouteOption> options, double lambda);

/// Of one token of a prompt, at the worker's rate or, until that is known, at a guess.
double MsPerPrefillToken(const Candidate& c);

/// A worker that has computed nothing yet is taken to be as fast as the others are in the mean. Taken for slower it
/// would get nothing to compute, and its speed would stay unknown.
void GuessUnknownRates(absl::Span<Candidate> candidates);

/// The parts of a pair's cost that one of its workers alone decides, ms: they and the transfer add up to it, but for
/// rounding.
double PrefillSideMs(const Candidate& prefills, uint32_t prompt_tokens, double lambda);
double DecodeSideMs(const Candidate& decodes, uint32_t prompt_tokens, double handoff_ms);
/// Of the tokens that `decodes` lacks.
double TransferMs(const Candidate& decodes, uint32_t prompt_tokens, double tokens_per_s);

}  // namespace baton::router
