#include "load/formats/confidence.h"

#include <boost/math/distributions/binomial.hpp>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <cstdint>

namespace baton::load {
namespace {

constexpr double kTail = 0.025;  ///< on each side

}  // namespace

std::optional<Interval> MeanInterval(double mean, double deviation, size_t count) {
  if (count < 2) return std::nullopt;
  const double free = static_cast<double>(count - 1);  // degrees of freedom; the sample's own deviation divides by them
  const double half = boost::math::quantile(boost::math::students_t(free), 1 - kTail) * deviation / std::sqrt(free);
  return Interval{mean - half, mean + half};
}

std::optional<Interval> QuantileInterval(const std::vector<double>& sorted, double share) {
  const auto count = std::ssize(sorted);
  if (count < 2) return std::nullopt;
  const boost::math::binomial below(static_cast<double>(count), share);
  // How many values at least have P(so many or fewer lie below) above `chance`, or at it with `or_at`.
  const auto first = [&](double chance, bool or_at) {
    int64_t low = 0, high = count;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      const double so_many = boost::math::cdf(below, static_cast<double>(middle));
      if (so_many > chance || (or_at && so_many == chance)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  };
  const int64_t lower = first(kTail, /*or_at=*/false) - 1, upper = first(1 - kTail, /*or_at=*/true);
  if (lower < 0 || upper >= count) return std::nullopt;
  return Interval{sorted[static_cast<size_t>(lower)], sorted[static_cast<size_t>(upper)]};
}

}  // namespace baton::load
