#include "load/table.h"

#include <gmock/gmock.h>

#include "tests/load/measured_fixture.h"

namespace baton::load {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Table, ARowIsTheMedianOfItsRuns) {
  const std::vector<Measured> all = {Steady("", {1, 0}, 0, 10, 10), Steady("", {1, 0}, 1, 10, 30),
                                     Steady("", {1, 0}, 2, 10, 20)};
  const std::vector<TableRow> rows = TableOf(all);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].runs, 3);
  EXPECT_EQ(rows[0].ttft_p50, 20);
  EXPECT_EQ(rows[0].tpot_p50, 10);
  EXPECT_EQ(rows[0].user_tokens_per_s(), 100);
  EXPECT_NEAR(rows[0].tokens_per_s, 5 / 0.06, 1e-6);
  EXPECT_NEAR(rows[0].spread, (5 / 0.05 - 5 / 0.07) / (5 / 0.06), 1e-6);
}

// A run in which everything fails.
Measured Dead(const LoadPoint& point, int round) {
  Measured out = Steady("", point, round, 10, 10);
  for (Outcome& o : out.run.outcomes) {
    o.arrivals.clear();
    o.failure = Failure::kConnect;
  }
  out.summary = Summarize(out.run, {});
  return out;
}

TEST(Table, ARunWithoutAnAnswerIsInNoMedianOfTimesAndARowOfSuchHasNone) {
  const std::vector<Measured> all = {Steady("", {1, 0}, 0, 10, 30), Dead({1, 0}, 1), Dead({2, 0}, 0), Dead({2, 0}, 1)};
  const std::vector<TableRow> rows = TableOf(all);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].ttft_p50, 30) << "not half of it";
  EXPECT_EQ(rows[0].failed, 10);
  EXPECT_TRUE(rows[0].on_front);
  EXPECT_FALSE(rows[1].ttft_p50 || rows[1].tpot_p99 || rows[1].e2el_p50);
  EXPECT_FALSE(rows[1].on_front);
  EXPECT_THAT(TableText(rows, {}),
              HasSubstr("     20       0.0      0.0         -         -        -        -  2 runs"));
  EXPECT_FALSE(TableOf({Dead({1, 0}, 0)})[0].on_front) << "it is alone, and has nothing";
}

TEST(Table, BesideAServerThatIsDeadThereAreNoRatiosOfTimes) {
  Measured dead = Dead({1, 0}, 0);
  dead.target = "b";
  const std::vector<Beside> beside = BesideFirst({Steady("a", {1, 0}, 0, 10, 10), dead});
  ASSERT_EQ(beside.size(), 1u);
  EXPECT_EQ(beside[0].tokens_per_s, 0);
  EXPECT_FALSE(beside[0].ttft_p50 || beside[0].ttft_p99 || beside[0].tpot_p50);
}

TEST(Table, OfARunThatWasCutShortTheSameRequestsAreCompared) {
  Measured first = Steady("a", {1, 0}, 0, 4, 10), other = Steady("b", {1, 0}, 0, 4, 10, "y");
  other.run.outcomes[2].answer.text = "x";
  other.run.outcomes.erase(other.run.outcomes.begin() + 1);
  first.run.outcomes.pop_back();
  const std::vector<Beside> beside = BesideFirst({first, other});
  EXPECT_EQ(beside[0].same, 1) << "request 2";
  EXPECT_EQ(beside[0].different, 1) << "request 0";
}

TEST(Table, OnlyRowsThatNoOtherBeatsAreOnTheFront) {
  Measured fast = Steady("", {1, 0}, 0, 10, 10), slow = Steady("", {2, 0}, 0, 10, 50);
  Measured busy = Steady("", {4, 0}, 0, 10, 50);
  busy.summary.duration_s /= 100;  // much more in all
  busy.summary.tpot = Statistics({40});
  const std::vector<TableRow> rows = TableOf({fast, slow, busy});
  EXPECT_TRUE(rows[0].on_front);
  EXPECT_FALSE(rows[1].on_front) << "as many for each user and fewer in all than the first";
  EXPECT_TRUE(rows[2].on_front);
}

TEST(Table, AServerBesideTheFirstHasTheMedianOfTheRoundsRatiosAndItsBytesCounted) {
  const std::vector<Measured> all = {Steady("a", {1, 0}, 0, 4, 10), Steady("b", {1, 0}, 0, 4, 20),
                                     Steady("b", {1, 0}, 1, 4, 30, "y"), Steady("a", {1, 0}, 1, 4, 10)};
  const std::vector<Beside> beside = BesideFirst(all);
  ASSERT_EQ(beside.size(), 1u);
  EXPECT_EQ(beside[0].target, "b");
  EXPECT_EQ(beside[0].first, "a");
  EXPECT_EQ(beside[0].ttft_p50, 2.5);
  EXPECT_EQ(beside[0].tpot_p50, 1);
  EXPECT_EQ(beside[0].same, 4);
  EXPECT_EQ(beside[0].different, 4);
  const std::string text = TableText(TableOf(all), beside);
  EXPECT_THAT(text, HasSubstr("b beside a, 1/s: tok/s 0."));
  EXPECT_THAT(text, HasSubstr("2 runs"));
}

TEST(Table, OneServerHasNobodyBesideIt) {
  EXPECT_TRUE(BesideFirst({Steady("", {1, 0}, 0, 4, 10), Steady("", {2, 0}, 0, 4, 10)}).empty());
}

}  // namespace
}  // namespace baton::load
