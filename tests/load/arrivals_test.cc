#include "load/arrivals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace baton::load {
namespace {

TEST(Arrivals, AnInfiniteRateSendsEverythingAtOnce) {
  for (Duration at : Arrivals({}, std::numeric_limits<double>::infinity(), 100)) EXPECT_EQ(at, Duration::zero());
}

TEST(Arrivals, ARunLastsWhatItsRateSaysAndNeverGoesBack) {
  for (double burstiness : {0.1, 1.0, 50.0}) {
    const auto at = Arrivals({.burstiness = burstiness}, 20, 1000);
    EXPECT_NEAR(Seconds(at.back()), 50, 1e-6) << burstiness;
    EXPECT_TRUE(std::ranges::is_sorted(at));
  }
}

double VariationOfGaps(double burstiness) {
  const auto at = Arrivals({.burstiness = burstiness}, 100, 20000);
  double sum = 0, squares = 0;
  for (size_t i = 1; i < at.size(); ++i) {
    const double gap = Seconds(at[i] - at[i - 1]);
    sum += gap;
    squares += gap * gap;
  }
  const double n = static_cast<double>(at.size() - 1), mean = sum / n;
  return std::sqrt(squares / n - mean * mean) / mean;
}

// A gamma distribution of shape k varies by 1/√k of its mean.
TEST(Arrivals, BurstinessIsTheShapeOfTheGaps) {
  EXPECT_NEAR(VariationOfGaps(1), 1, 0.05);
  EXPECT_NEAR(VariationOfGaps(0.25), 2, 0.15);
  EXPECT_NEAR(VariationOfGaps(100), 0.1, 0.01);
}

TEST(Arrivals, TheSameSeedIsTheSameScheduleAndAnotherIsNot) {
  const BenchOptions one{.seed = 1}, two{.seed = 2};
  EXPECT_EQ(Arrivals(one, 5, 50), Arrivals(one, 5, 50));
  EXPECT_NE(Arrivals(one, 5, 50), Arrivals(two, 5, 50));
}

TEST(Arrivals, ARampGoesFromItsFirstRateToItsLast) {
  BenchOptions o{.burstiness = 1e6};
  o.ramp_up_start_rps = 1;
  o.ramp_up_end_rps = 100;
  for (const char* kind : {"linear", "exponential"}) {
    o.ramp_up_strategy = kind;
    const auto at = Arrivals(o, std::numeric_limits<double>::infinity(), 1000);
    EXPECT_NEAR(Seconds(at[1] - at[0]), 1, 0.1) << kind;
    EXPECT_NEAR(Seconds(at[999] - at[998]), 0.01, 0.001) << kind;
  }
}

}  // namespace
}  // namespace baton::load
