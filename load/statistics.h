// Mean, deviation and percentiles of a list of figures.
#pragma once

#include <cstddef>
#include <vector>

namespace baton::load {

class Statistics {
 public:
  explicit Statistics(std::vector<double> values);

  size_t count() const { return sorted_.size(); }
  double mean() const { return mean_; }
  double deviation() const { return deviation_; }  ///< of the population
  double most() const { return sorted_.empty() ? 0 : sorted_.back(); }
  /// Between the two nearest by straight line, as NumPy does; 0 of an empty list. `percent` in [0, 100].
  double Percentile(double percent) const;

 private:
  std::vector<double> sorted_;
  double mean_ = 0, deviation_ = 0;
};

}  // namespace baton::load
