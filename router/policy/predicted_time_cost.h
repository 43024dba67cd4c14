// What "predicted time" takes an option to cost. Pure.
#pragma once

#include <algorithm>
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
inline double MsPerPrefillToken(const Candidate& c) {
  constexpr double kUnknownRate = 1000;  // tokens/s, until the handshake or a report says better
  return 1000 / (c.prefill_tokens_per_s > 0 ? c.prefill_tokens_per_s : kUnknownRate);
}

/// A worker that has computed nothing yet is taken to be as fast as the others are in the mean. Taken for slower it
/// would get nothing to compute, and its speed would stay unknown.
void GuessUnknownRates(absl::Span<Candidate> candidates);

/// What of a pair's cost its prefill worker decides, ms.
struct PrefillTerms {
  double queue_ms = 0, prefill_ms = 0, pressure_ms = 0;
  double side_ms = 0;  ///< all of it, in one sum
};
/// What its decode worker decides.
struct DecodeTerms {
  double tokens;  ///< that it lacks, and at least one
  double slowdown_ms, pressure_ms;
};

// In the header: the search computes them for each of a thousand workers, and each call would wait for its result to
// come back through memory.
namespace terms {

constexpr double kPressureFrom = 0.9;  // of the KV blocks in use
constexpr double kUnknownStepMs = 10;  // until a worker has reported a step
// Each token of the answer waits for the sequences beside it. How many there will be is not known: a short answer's.
constexpr double kAnswerTokens = 64;

// At least one token is computed, for its logits.
inline double TokensToCompute(const Candidate& c, uint32_t prompt_tokens) {
  return prompt_tokens > c.cached_tokens ? prompt_tokens - c.cached_tokens : 1;
}

inline double StepMs(const Candidate& c) { return c.decode_step_ms > 0 ? c.decode_step_ms : kUnknownStepMs; }

inline double DecodeSlowdownMs(const Candidate& c) {
  if (c.running == 0) return 0;
  const double slots = std::max(1, c.max_num_seqs);
  const double beyond = std::max(0.0, c.running + 1 - slots);  // sequences that must end before this one decodes
  return StepMs(c) * (kAnswerTokens * std::min(c.running / slots, 1.0) + 8 * beyond);
}

inline double PressureMs(const Candidate& c, uint32_t prompt_tokens) {
  if (c.kv_used_fraction <= kPressureFrom) return 0;
  const double over = (c.kv_used_fraction - kPressureFrom) / (1 - kPressureFrom);
  return over * (prompt_tokens * MsPerPrefillToken(c) + c.decode_step_ms);
}

}  // namespace terms

inline PrefillTerms TermsOfPrefill(const Candidate& prefills, uint32_t prompt_tokens, double lambda) {
  const double ms_per_token = MsPerPrefillToken(prefills), tokens = terms::TokensToCompute(prefills, prompt_tokens);
  const double pressure_ms = terms::PressureMs(prefills, prompt_tokens);
  return {.queue_ms = prefills.queued_tokens * ms_per_token,
          .prefill_ms = (1 + lambda) * tokens * ms_per_token,
          .pressure_ms = pressure_ms,
          .side_ms = (prefills.queued_tokens + (1 + lambda) * tokens) * ms_per_token + pressure_ms};
}

inline DecodeTerms TermsOfDecode(const Candidate& decodes, uint32_t prompt_tokens) {
  return {.tokens = terms::TokensToCompute(decodes, prompt_tokens),
          .slowdown_ms = terms::DecodeSlowdownMs(decodes),
          .pressure_ms = terms::PressureMs(decodes, prompt_tokens)};
}

inline double TransferMs(const DecodeTerms& decodes, double tokens_per_s) {
  return 1000 * decodes.tokens / tokens_per_s;
}
/// PredictedCost's total of a pair, to the bit.
inline double PairMs(const PrefillTerms& prefills, const DecodeTerms& decodes, double tokens_per_s, double handoff_ms) {
  return prefills.queue_ms + prefills.prefill_ms + TransferMs(decodes, tokens_per_s) + handoff_ms +
         decodes.slowdown_ms + (decodes.pressure_ms + prefills.pressure_ms);
}
/// Its decode worker's part without a transfer: with the transfer and the prefill worker's it adds up to the cost, but
/// for rounding.
inline double DecodeSideMs(const DecodeTerms& decodes, double handoff_ms) {
  return handoff_ms + decodes.slowdown_ms + decodes.pressure_ms;
}

}  // namespace baton::router
