#include "load/load_points.h"

#include <gmock/gmock.h>

#include <limits>

#include "common/str_cat.h"

namespace baton::load {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
constexpr double kAllAtOnce = std::numeric_limits<double>::infinity();

TEST(LoadPoints, EachRateWithEachLimit) {
  BenchOptions o;
  EXPECT_THAT(*PointsOf(o), ElementsAre(LoadPoint{kAllAtOnce, 0}));
  o.request_rate = "1,2.5,inf";
  o.max_concurrency = "4,8";
  EXPECT_THAT(*PointsOf(o), ElementsAre(LoadPoint{1, 4}, LoadPoint{1, 8}, LoadPoint{2.5, 4}, LoadPoint{2.5, 8},
                                        LoadPoint{kAllAtOnce, 4}, LoadPoint{kAllAtOnce, 8}));
  EXPECT_EQ(PointName({2.5, 8}), "2.5/s, 8 at a time");
  EXPECT_EQ(PointName({kAllAtOnce, 8}), "8 at a time");
  EXPECT_EQ(PointName({kAllAtOnce, 0}), "all at once");
  EXPECT_EQ(PointName({kAllAtOnce, 8, true}), "at its own times, 8 at a time");
}

TEST(LoadPoints, TextsThatAreNoLoadsAreRefusedWithFlagAndText) {
  for (const char* bad : {"", "x", "1,", "0", "-1", "nan", "1;2"}) {
    BenchOptions o;
    o.request_rate = bad;
    EXPECT_THAT(std::string(PointsOf(o).status().message()), HasSubstr("--request-rate")) << bad;
  }
  for (const char* bad : {"", "x", "4,", "-1", "1.5"}) {
    BenchOptions o;
    o.max_concurrency = bad;
    EXPECT_THAT(std::string(PointsOf(o).status().message()), HasSubstr("--max-concurrency")) << bad;
  }
}

TEST(LoadPoints, ARampAndARateContradictEachOther) {
  BenchOptions o;
  o.ramp_up_strategy = "linear";
  EXPECT_THAT(std::string(PointsOf(o).status().message()), HasSubstr("--ramp-up-start-rps"));
  o.ramp_up_start_rps = o.ramp_up_end_rps = 1;
  EXPECT_TRUE(PointsOf(o).ok());
  o.request_rate = "5";
  EXPECT_THAT(std::string(PointsOf(o).status().message()), HasSubstr("leave one out"));
}

TEST(LoadPoints, ATraceKeepsItsOwnTimesUnlessTheyAreGivenUp) {
  BenchOptions o;
  for (const char* trace : {"mooncake", "timed_trace", "azure"}) {
    o.dataset_name = trace;
    o.request_rate = "inf";
    EXPECT_THAT(*PointsOf(o), ElementsAre(LoadPoint{kAllAtOnce, 0, true}));
    o.request_rate = "4";
    EXPECT_THAT(std::string(PointsOf(o).status().message()),
                HasSubstr(StrCat("--dataset-name ", trace, " has times of its own, and --request-rate 4 others")));
    o.self_timed = false;
    EXPECT_THAT(*PointsOf(o), ElementsAre(LoadPoint{4, 0}));
    o.self_timed = true;
  }
  o.request_rate = "inf";
  o.ramp_up_strategy = "linear";
  o.ramp_up_start_rps = o.ramp_up_end_rps = 1;
  EXPECT_THAT(std::string(PointsOf(o).status().message()), HasSubstr("and --ramp-up-strategy linear others"));
}

}  // namespace
}  // namespace baton::load
