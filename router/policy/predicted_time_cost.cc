#include "router/policy/predicted_time_cost.h"

#include <algorithm>

namespace baton::router {

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

// Each answer that runs where a prompt is computed waits for it. A long prompt comes in chunks with a token of each
// answer between them, so that it costs an answer no more than this many steps here; with all of its time in the price,
// long prompts would wait in longer queues rather than run beside answers.
constexpr double kStallSteps = 4;

double StallMs(const Candidate& c, uint32_t prompt_tokens) {
  return c.running *
         std::min(terms::TokensToCompute(c, prompt_tokens) * MsPerPrefillToken(c), kStallSteps * terms::StepMs(c));
}

}  // namespace

Cost PredictedCost(absl::Span<const Candidate> candidates, const RouteOption& option, uint32_t prompt_tokens,
                   double lambda) {
  const Candidate& decodes = candidates[option.worker];
  const Candidate& prefills = candidates[option.prefill.value_or(option.worker)];
  const PrefillTerms prefill = TermsOfPrefill(prefills, prompt_tokens, lambda);
  const DecodeTerms decode = TermsOfDecode(decodes, prompt_tokens);
  Cost cost;
  cost.queue_ms = prefill.queue_ms;
  cost.prefill_ms = prefill.prefill_ms;
  cost.decode_slowdown_ms = decode.slowdown_ms;
  cost.stall_ms = option.prefill ? 0 : StallMs(decodes, prompt_tokens);  // no answers run on a prefill worker
  cost.pressure_ms = decode.pressure_ms;
  if (option.prefill) {
    cost.transfer_ms = TransferMs(decode, option.transfer_tokens_per_s);
    cost.handoff_ms = option.handoff_ms;
    cost.pressure_ms += prefill.pressure_ms;
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
