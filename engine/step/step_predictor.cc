#include "engine/step/step_predictor.h"

#include <algorithm>

namespace baton::engine {
namespace {

constexpr double kForget = 0.97;         // remembers about 30 steps
constexpr double kInitialVariance = 1.0;
constexpr double kMaxVariance = 1e3;     // steps that are all alike must not make the filter jumpy

// Scaled so that the three numbers are of one order.
std::array<double, 3> Features(const StepWork& work) { return {1.0, work.rows / 64.0, work.attended / 65536.0}; }

}  // namespace

StepPredictor::StepPredictor(double prior_ms_per_token) : weights_{0.0, prior_ms_per_token * 64.0, 0.0} {
  for (size_t i = 0; i < 3; ++i) covariance_[i][i] = kInitialVariance;
}

void StepPredictor::Observe(const StepWork& work, double ms) {
  const std::array<double, 3> x = Features(work);
  std::array<double, 3> px{};
  double denominator = kForget, predicted = 0;
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 3; ++j) px[i] += covariance_[i][j] * x[j];
    denominator += x[i] * px[i];
    predicted += weights_[i] * x[i];
  }
  double largest = 0;
  for (size_t i = 0; i < 3; ++i) {
    weights_[i] = std::max(0.0, weights_[i] + px[i] / denominator * (ms - predicted));
    for (size_t j = 0; j < 3; ++j) covariance_[i][j] = (covariance_[i][j] - px[i] * px[j] / denominator) / kForget;
    largest = std::max(largest, covariance_[i][i]);
  }
  if (largest > kMaxVariance) {
    for (auto& row : covariance_) {
      for (double& v : row) v *= kMaxVariance / largest;
    }
  }
  ++steps_;
}

double StepPredictor::Predict(const StepWork& work) const {
  const std::array<double, 3> x = Features(work);
  return weights_[0] * x[0] + weights_[1] * x[1] + weights_[2] * x[2];
}

int32_t StepPredictor::TokensWithin(const StepWork& work, int32_t context, double limit_ms, int32_t max_tokens) const {
  int32_t low = 0, high = max_tokens;
  while (low < high) {
    const int32_t middle = low + (high - low + 1) / 2;
    StepWork with = work;
    with.Add(middle, context);
    if (Predict(with) <= limit_ms) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace baton::engine
