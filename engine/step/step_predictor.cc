#include "engine/step/step_predictor.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace baton::engine {
namespace {

using Vector = StepPredictor::Vector;
using Matrix = StepPredictor::Matrix;

constexpr double kFade = 0.97;  // remembers about 30 steps
constexpr double kScaleFade = 0.999;
constexpr double kStay = 1e-3;  // pull to the weights of before, relative to one step's evidence
constexpr double kLeastMs = 0.01;

// Scaled so that the three numbers are of one order.
Vector Features(const StepWork& work) { return {1.0, work.rows / 64.0, work.attended / 65536.0}; }

double Dot(const Vector& a, const Vector& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

// Minimizes wᵀHw - 2gᵀw over the weights of `free` (bits), the others being 0. H is positive definite.
Vector SolveFree(const Matrix& h, const Vector& g, unsigned free) {
  Matrix m{};
  Vector rhs{};
  for (size_t i = 0; i < 3; ++i) {
    m[i][i] = 1;
    if ((free >> i & 1) == 0) continue;
    rhs[i] = g[i];
    for (size_t j = 0; j < 3; ++j) m[i][j] = (free >> j & 1) != 0 ? h[i][j] : 0;
  }
  for (size_t i = 0; i < 3; ++i) {  // Gauss; positive definite, so no pivoting
    for (size_t r = i + 1; r < 3; ++r) {
      const double factor = m[r][i] / m[i][i];
      for (size_t c = i; c < 3; ++c) m[r][c] -= factor * m[i][c];
      rhs[r] -= factor * rhs[i];
    }
  }
  for (size_t i = 3; i-- > 0;) {
    for (size_t c = i + 1; c < 3; ++c) rhs[i] -= m[i][c] * rhs[c];
    rhs[i] /= m[i][i];
  }
  return rhs;
}

// The best weights ≥ 0: of the eight choices of which are 0, the feasible one with the least cost.
Vector SolveNonNegative(const Matrix& h, const Vector& g) {
  Vector best{};
  double best_cost = 0;  // of all zero
  for (unsigned free = 1; free < 8; ++free) {
    const Vector w = SolveFree(h, g, free);
    if (*std::min_element(w.begin(), w.end()) < 0) continue;
    const double cost = -Dot(g, w);  // = wᵀHw - 2gᵀw at the minimum
    if (cost < best_cost) {
      best_cost = cost;
      best = w;
    }
  }
  return best;
}

}  // namespace

StepPredictor::StepPredictor(double prior_ms_per_token) : weights_{0.0, prior_ms_per_token * 64.0, 0.0} {}

void StepPredictor::Observe(const StepWork& work, double ms) {
  ms = std::max(ms, kLeastMs);
  const Vector x = Features(work);
  Matrix h{};
  Vector g{};
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 3; ++j) h[i][j] = products_[i][j] = kFade * products_[i][j] + x[i] * x[j] / (ms * ms);
    targets_[i] = kFade * targets_[i] + x[i] / ms;
    scale_[i] = std::max(kScaleFade * scale_[i], x[i] * x[i] / (ms * ms));
    const double stay = kStay * scale_[i] + 1e-12;
    h[i][i] += stay;
    g[i] = targets_[i] + stay * weights_[i];
  }
  weights_ = SolveNonNegative(h, g);
}

double StepPredictor::Predict(const StepWork& work) const { return Dot(weights_, Features(work)); }

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
