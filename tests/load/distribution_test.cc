#include "load/formats/distribution.h"

#include <gtest/gtest.h>

namespace baton::load {
namespace {

using OrderedJson = nlohmann::ordered_json;

TEST(Distribution, PercentilesAreValuesThatWereSeen) {
  const OrderedJson d = DistributionOf({{4}, {1}, {3}, {2}});
  EXPECT_EQ(d["mean"], 2.5);
  EXPECT_EQ(d["median"], 2.0) << "half of them are not above it";
  EXPECT_EQ(d["percentiles"]["p75"], 3.0);
  EXPECT_EQ(d["percentiles"]["p99"], 4.0);
  EXPECT_EQ(d["percentiles"]["p001"], 1.0);
  EXPECT_EQ(d["min"], 1.0);
  EXPECT_EQ(d["count"], 4);
  EXPECT_EQ(d["total_sum"], 10.0);
  EXPECT_EQ(d["variance"], 1.25);
}

TEST(Distribution, AValueCountsAsOftenAsItsWeightSays) {
  const OrderedJson d = DistributionOf({{10, 1}, {20, 9}, {10, 2}, {7, 0}});
  EXPECT_DOUBLE_EQ(d["mean"].get<double>(), 210.0 / 12);
  EXPECT_EQ(d["mode"], 20.0);
  EXPECT_EQ(d["percentiles"]["p25"], 10.0);
  EXPECT_EQ(d["median"], 20.0);
  EXPECT_EQ(d["min"], 10.0) << "what weighs nothing is not there";
  EXPECT_EQ(d["count"], 12);
}

// As guidellm 0.8.1 has them.
TEST(Distribution, OfASampleItIsSaidWhereTheMeanAndPercentilesLie) {
  std::vector<double> squares;
  for (int i = 1; i <= 100; ++i) squares.push_back(i * i);
  const OrderedJson d = SampleOf(squares);
  EXPECT_NEAR(d["mean_ci"]["lower"].get<double>(), 2783.402184630222, 1e-6);
  EXPECT_NEAR(d["mean_ci"]["upper"].get<double>(), 3983.597815369778, 1e-6);
  const OrderedJson& at = d["percentile_cis"];
  EXPECT_EQ(at["p50"], (OrderedJson{{"lower", 1600.0}, {"upper", 3721.0}}));
  EXPECT_EQ(at["p95"], (OrderedJson{{"lower", 8100.0}, {"upper", 10000.0}}));
  EXPECT_EQ(at["p05"], (OrderedJson{{"lower", 1.0}, {"upper", 121.0}}));
  EXPECT_EQ(at["p10"], (OrderedJson{{"lower", 25.0}, {"upper", 289.0}}));
  for (const char* far : {"p001", "p01", "p99", "p999"}) EXPECT_TRUE(at[far].is_null()) << far;
  EXPECT_NEAR(SampleOf({1, 2, 4})["mean_ci"]["lower"].get<double>(), -1.4612497002641178, 1e-9);
  EXPECT_TRUE(SampleOf({1})["mean_ci"].is_null());
  EXPECT_TRUE(DistributionOf({{1}, {2}})["mean_ci"].is_null()) << "values with weights are no sample";
}

TEST(Distribution, NothingIsADistributionOfNoughts) {
  const OrderedJson d = DistributionOf({});
  for (const char* key : {"mean", "median", "mode", "variance", "std_dev", "min", "max", "count", "total_sum"})
    EXPECT_EQ(d[key], 0) << key;
  EXPECT_EQ(d["percentiles"].size(), 11u);
  EXPECT_EQ(RateDistribution({}, 0, 0)["mean"], 0);
  EXPECT_EQ(RunningDistribution({}, 0, 0)["mean"], 0);
}

TEST(Distribution, ARateHoldsHalfWayToItsNeighboursAndItsMeanIsTheWholeAmountByTheWholeTime) {
  const OrderedJson even = RateDistribution({{1, 5}, {2, 5}, {3, 5}}, 0, 4);
  EXPECT_DOUBLE_EQ(even["mean"].get<double>(), 15.0 / 4);
  EXPECT_EQ(even["median"], 5.0);
  EXPECT_EQ(even["min"], 0.0) << "at both ends nothing comes";
  EXPECT_EQ(even["count"], 15);
  const OrderedJson burst = RateDistribution({{1, 1}, {1.00005, 1}, {1.0001, 1}}, 0, 2);
  EXPECT_EQ(burst["max"], 3.0) << "they come at once, and nothing else within half a second";
}

TEST(Distribution, WhatRunsIsCountedForAsLongAsItDoes) {
  const OrderedJson d = RunningDistribution({{0, 4}, {1, 3}, {1, 2}}, 0, 4);
  EXPECT_DOUBLE_EQ(d["mean"].get<double>(), 7.0 / 4);
  EXPECT_EQ(d["max"], 3.0);
  EXPECT_EQ(d["min"], 1.0);
  EXPECT_EQ(d["mode"], 1.0);
  EXPECT_EQ(d["count"], 3);
}

}  // namespace
}  // namespace baton::load
