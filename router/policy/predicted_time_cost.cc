#include "router/policy/predicted_time_cost.h"

#include <algorithm>

namespace baton::router {

double MsPerPrefillToken(const Candidate& c) {
  constexpr double kUnknownRate = 1000;  // tokens/s, until the handshake or a report says better
  return 1000 / (c.prefill_tokens_per_s > 0 ? c.prefill_tokens_per_s : kUnknownRate);
}

namespace {

// The mean of those that are known; 0: none is.
double MeanKnown(absl::Span<const Candidate> candidates, double Candidate::* figure) {
  double sum = 0;
  int known = 0;
  for (const Candidate& c : candidates) {
    sum += c.*figure;
    known += c.*figure > 0 ? 1 : 0;
  }
  return known > 0 ? sum / known : 0;
}

}  // namespace

void GuessUnknownRates(absl::Span<Candidate> candidates) {
  for (const auto figure : {&Candidate::prefill_tokens_per_s, &Candidate::decode_step_ms}) {
    const double mean = MeanKnown(candidates, figure);
    for (Candidate& c : candidates) {
      if (c.*figure <= 0) c.*figure = mean;
    }
  }
}

namespace {

constexpr double kPressureFrom = 0.9;  // of the KV blocks in use
constexpr double kUnknownStepMs = 10;  // until a worker has reported a step
// Each token of the answer waits for the sequences beside it. How many there will be is not known: a short answer's.
constexpr double kAnswerTokens = 64;

// At least one token is computed, for its logits.
double TokensToCompute(const Candidate& c, uint32_t prompt_tokens) {
  return prompt_tokens > c.cached_tokens ? prompt_tokens - c.cached_tokens : 1;
}

double StepMs(const Candidate& c) { return c.decode_step_ms > 0 ? c.decode_step_ms : kUnknownStepMs; }

double DecodeSlowdownMs(const Candidate& c) {
  const double slots = std::max(1, c.max_num_seqs);
  const double beyond = std::max(0.0, c.running + 1 - slots);  // sequences that must end before this one decodes
  return StepMs(c) * (kAnswerTokens * std::min(c.running / slots, 1.0) + 8 * beyond);
}

// Each answer that runs where a prompt is computed waits for it. A long prompt comes in chunks with a token of each
// answer between them, so that it costs an answer no more than this many steps here; with all of its time in the price,
// long prompts would wait in longer queues rather than run beside answers.
constexpr double kStallSteps = 4;

double StallMs(const Candidate& c, uint32_t prompt_tokens) {
  return c.running * std::min(TokensToCompute(c, prompt_tokens) * MsPerPrefillToken(c), kStallSteps * StepMs(c));
}

double PressureMs(const Candidate& c, uint32_t prompt_tokens) {
  const double over = std::max(0.0, c.kv_used_fraction - kPressureFrom) / (1 - kPressureFrom);
  return over * (prompt_tokens * MsPerPrefillToken(c) + c.decode_step_ms);
}

}  // namespace

double TransferMs(const Candidate& decodes, uint32_t prompt_tokens, double tokens_per_s) {
  return 1000 * TokensToCompute(decodes, prompt_tokens) / tokens_per_s;
}

double PrefillSideMs(const Candidate& prefills, uint32_t prompt_tokens, double lambda) {
  return (prefills.queued_tokens + (1 + lambda) * TokensToCompute(prefills, prompt_tokens)) *
             MsPerPrefillToken(prefills) +
         PressureMs(prefills, prompt_tokens);
}

double DecodeSideMs(const Candidate& decodes, uint32_t prompt_tokens, double handoff_ms) {
  return handoff_ms + DecodeSlowdownMs(decodes) + PressureMs(decodes, prompt_tokens);
}

Cost PredictedCost(absl::Span<const Candidate> candidates, const RouteOption& option, uint32_t prompt_tokens,
                   double lambda) {
  const Candidate& decodes = candidates[option.worker];
  const Candidate& prefills = candidates[option.prefill.value_or(option.worker)];
  Cost cost;
  cost.queue_ms = prefills.queued_tokens * MsPerPrefillToken(prefills);
  cost.prefill_ms = (1 + lambda) * TokensToCompute(prefills, prompt_tokens) * MsPerPrefillToken(prefills);
  cost.decode_slowdown_ms = DecodeSlowdownMs(decodes);
  cost.stall_ms = option.prefill ? 0 : StallMs(decodes, prompt_tokens);  // no answers run on a prefill worker
  cost.pressure_ms = PressureMs(decodes, prompt_tokens);
  if (option.prefill) {
    cost.transfer_ms = TransferMs(decodes, prompt_tokens, option.transfer_tokens_per_s);
    cost.handoff_ms = option.handoff_ms;
    cost.pressure_ms += PressureMs(prefills, prompt_tokens);
  }
  cost.total_ms = cost.queue_ms + cost.prefill_ms + cost.transfer_ms + cost.handoff_ms + cost.decode_slowdown_ms +
                  cost.stall_ms + cost.pressure_ms;
  return cost;
}

std::vector<Cost> PredictedCosts(const RouteQuestion& question, absl::Span<const RouteOption> options, double lambda) {
  std::vector<Cost> table;
  table.reserve(options.size());
  for (const RouteOption& option : options)
    table.push_back(PredictedCost(question.candidates, option, question.prompt_tokens, lambda));
  return table;
}

}  // namespace baton::router
