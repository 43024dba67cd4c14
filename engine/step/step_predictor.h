// Predicts how long a step takes, from the steps that ran: a + b · rows + c · attended tokens, by recursive least
// squares with forgetting. Pure; scheduler thread.
#pragma once

#include <array>
#include <cstdint>

namespace baton::engine {

/// What a step costs: rows, and Σ over rows of the context each attends to.
struct StepWork {
  double rows = 0;
  double attended = 0;
  /// Adds `tokens` rows after `context` computed tokens.
  void Add(int32_t tokens, int32_t context) {
    rows += tokens;
    attended += static_cast<double>(tokens) * (context + 0.5 * tokens);
  }
};

class StepPredictor {
 public:
  /// `prior_ms_per_token` is believed until steps were seen.
  explicit StepPredictor(double prior_ms_per_token);
  void Observe(const StepWork& work, double ms);
  double Predict(const StepWork& work) const;
  /// The most tokens of one sequence at `context` that can join `work` within `limit_ms`, at most `max_tokens`.
  int32_t TokensWithin(const StepWork& work, int32_t context, double limit_ms, int32_t max_tokens) const;
  int64_t steps_seen() const { return steps_; }

 private:
  std::array<double, 3> weights_;                   ///< ms per {step, row, 1,000 attended tokens}
  std::array<std::array<double, 3>, 3> covariance_{};
  int64_t steps_ = 0;
};

}  // namespace baton::engine
