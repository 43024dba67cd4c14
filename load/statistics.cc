#include "load/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace baton::load {

Statistics::Statistics(std::vector<double> values) : sorted_(std::move(values)) {
  std::ranges::sort(sorted_);
  if (sorted_.empty()) return;
  const auto n = static_cast<double>(sorted_.size());
  mean_ = std::accumulate(sorted_.begin(), sorted_.end(), 0.0) / n;
  double squares = 0;
  for (double value : sorted_) squares += (value - mean_) * (value - mean_);
  deviation_ = std::sqrt(squares / n);
}

double Statistics::Percentile(double percent) const {
  if (sorted_.empty()) return 0;
  const double at = percent / 100 * static_cast<double>(sorted_.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted_.size() - 1);
  return sorted_[below] + (sorted_[above] - sorted_[below]) * (at - static_cast<double>(below));
}

}  // namespace baton::load
