#include "load/faults.h"

#include <gmock/gmock.h>

namespace baton::load {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Faults, TimesAndNamesAreRead) {
  const KillWish kill = *ParseKill("decode@1.5s");
  EXPECT_EQ(kill.worker, "decode");
  EXPECT_EQ(kill.at, milliseconds(1500));
  EXPECT_EQ(ParseKill("a@b@500ms")->worker, "a@b");
  const CommandWish command = *ParseCommand("2m=echo a=b");
  EXPECT_EQ(command.at, seconds(120));
  EXPECT_EQ(command.command, "echo a=b");
  for (const char* bad : {"", "decode", "decode@", "@3s", "decode@3", "decode@-1s", "decode@xs", "decode@infs"})
    EXPECT_FALSE(ParseKill(bad).ok()) << bad;
  for (const char* bad : {"", "3s", "3s=", "x=echo", "=echo"}) EXPECT_FALSE(ParseCommand(bad).ok()) << bad;
}

// A request each 100 ms from `from` to `to`, each with a token 50 ms after it was sent.
void AddSteady(Duration from, Duration to, std::vector<Outcome>& out) {
  for (Duration at = from; at < to; at += milliseconds(100)) {
    Outcome o{.index = out.size(), .sent = at, .end = at + milliseconds(60)};
    o.arrivals.push_back(at + milliseconds(50));
    out.push_back(o);
  }
}

TEST(Faults, ADipHasItsDepthItsLengthAndTheRequestsThatRan) {
  std::vector<Outcome> outcomes;
  AddSteady(seconds(0), seconds(10), outcomes);
  outcomes.push_back({.index = outcomes.size(),
                      .sent = milliseconds(9900),
                      .end = milliseconds(10500),
                      .failure = Failure::kBroken});  // it ran when the worker died
  AddSteady(seconds(12), seconds(30), outcomes);
  const Dip dip = *FindDip(outcomes, seconds(31), {seconds(10), "kill decode", ""});
  EXPECT_NEAR(dip.before, 10, 0.5);
  EXPECT_EQ(dip.least, 0);
  EXPECT_EQ(dip.depth(), 1);
  ASSERT_TRUE(dip.over_after_s);
  EXPECT_NEAR(*dip.over_after_s, 2, 0.3);
  EXPECT_EQ(dip.running.size(), 1u);
  EXPECT_EQ(dip.failed, 1);
}

TEST(Faults, ADipThatLastsToTheEndOfTheLoadIsNotOver) {
  std::vector<Outcome> outcomes;
  AddSteady(seconds(0), seconds(10), outcomes);
  outcomes.push_back({.index = outcomes.size(), .sent = seconds(29), .end = seconds(30)});
  const Dip dip = *FindDip(outcomes, seconds(30), {seconds(10), "kill decode", ""});
  EXPECT_FALSE(dip.over_after_s);
}

TEST(Faults, NoDipIsSeenBeforeTheLoadOrAfterIt) {
  std::vector<Outcome> outcomes;
  AddSteady(seconds(0), seconds(10), outcomes);
  EXPECT_FALSE(FindDip(outcomes, seconds(10), {seconds(0), "x", ""}));
  EXPECT_FALSE(FindDip(outcomes, seconds(10), {milliseconds(9800), "x", ""}));
}

TEST(Faults, AChunkHasItsShareOfTheTokens) {
  Outcome o{.sent = Duration::zero(), .end = seconds(1)};
  o.arrivals = {milliseconds(10), milliseconds(600)};
  o.answer.counted = true;
  o.answer.completion_tokens = 8;
  const std::vector<double> rates = TokenRates({o}, seconds(1));
  ASSERT_EQ(rates.size(), 5u);
  EXPECT_EQ(rates[0], 16);  // 4 tokens in a quarter of a second
  EXPECT_EQ(rates[1], 0);
  EXPECT_EQ(rates[2], 16);
}

}  // namespace
}  // namespace baton::load
