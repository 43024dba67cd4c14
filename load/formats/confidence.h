// Where a figure of all requests lies with 95 % confidence, as far as those that were measured can say. Pure. It takes
// them for independent draws, so it tells how precise this run is, not how far the next one may lie from it.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace baton::load {

struct Interval {
  double lower = 0, upper = 0;
};

/// Of the mean, by Student's t. `deviation`: of the values themselves (divided by their count). Nullopt: below two.
std::optional<Interval> MeanInterval(double mean, double deviation, size_t count);

/// Of the value that `share` (0 to 1, neither) of all lies below, whatever their distribution: two of the values, by
/// the binomial distribution of how many lie below it. Nullopt: there are too few for a value on either side (p99 wants
/// 368).
std::optional<Interval> QuantileInterval(const std::vector<double>& sorted, double share);

}  // namespace baton::load
