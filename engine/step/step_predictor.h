// Predicts how long a step takes, from the steps that ran: a + b · rows + c · attended tokens with a, b, c ≥ 0.
//
// Weighted least squares over the last steps (older ones fade), relative errors: a step of 2 ms counts as much as one
// of 200 ms, and an outlier that took ten times as long moves little. A weight about which the steps say nothing
// stays as it was: hours of equal decode steps do not change what a prefill is believed to cost. Pure; scheduler
// thread.
#pragma once

#include <array>
#include <cstdint>

namespace baton::engine {

/// The quantities that a step's time depends on: rows, and Σ over rows of the context each attends to.
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
  using Vector = std::array<double, 3>;
  using Matrix = std::array<Vector, 3>;
  /// `prior_ms_per_token` is believed until steps were seen.
  explicit StepPredictor(double prior_ms_per_token);
  void Observe(const StepWork& work, double ms);
  double Predict(const StepWork& work) const;
  /// The most tokens of one sequence at `context` that can join `work` within `limit_ms`, at most `max_tokens`.
  int32_t TokensWithin(const StepWork& work, int32_t context, double limit_ms, int32_t max_tokens) const;

 private:
  Vector weights_;     ///< ms per {step, 64 rows, 65,536 attended tokens}
  Matrix products_{};  ///< Σ x xᵀ / ms² of the steps, fading
  Vector targets_{};   ///< Σ x / ms
  Vector scale_{};     ///< how large x² / ms² is, fading slowly: what "moves little" means per weight
};

}  // namespace baton::engine
