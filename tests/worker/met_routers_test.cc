#include "worker/process/met_routers.h"

#include <gtest/gtest.h>

#include <chrono>

#include "common/str_cat.h"

namespace baton::worker {
namespace {

TEST(MetRouters, EachHasOneLineWithItsVersion) {
  FakeClock clock;
  MetRouters met(clock);
  EXPECT_EQ(met.LineOf("router-1", "0.1.0", "10.0.0.1"), "worker: met router-1 of version 0.1.0 at 10.0.0.1");
  EXPECT_EQ(met.LineOf("router-2", "", "10.0.0.2"), "worker: met router-2 of version unknown at 10.0.0.2");
  for (int i = 0; i < 3; ++i, clock.Advance(std::chrono::hours(1)))
    EXPECT_EQ(met.LineOf("router-1", "0.1.0", "10.0.0.1"), "") << "it greets again while the model is loaded";
  EXPECT_EQ(met.LineOf("", "0.1.0", "10.0.0.1"), "worker: met a router without a name of version 0.1.0 at 10.0.0.1");
}

TEST(MetRouters, AHostHasALineASecondAndWhoHadNoneHasItLater) {
  FakeClock clock;
  MetRouters met(clock);
  EXPECT_NE(met.LineOf("a", "1", "10.0.0.1"), "");
  EXPECT_EQ(met.LineOf("b", "1", "10.0.0.1"), "");
  EXPECT_NE(met.LineOf("c", "1", "10.0.0.2"), "");
  clock.Advance(std::chrono::seconds(1));
  EXPECT_NE(met.LineOf("b", "1", "10.0.0.1"), "");
}

TEST(MetRouters, TheOldestAreForgottenAndWordsOfStrangersAreOneLine) {
  FakeClock clock;
  MetRouters met(clock);
  for (size_t i = 0; i <= MetRouters::kMost; ++i, clock.Advance(std::chrono::seconds(1)))
    EXPECT_NE(met.LineOf(StrCat("router-", i), "1", "h"), "") << i;
  EXPECT_EQ(met.LineOf("router-1", "1", "h"), "");
  EXPECT_NE(met.LineOf("router-0", "1", "h"), "");
  clock.Advance(std::chrono::seconds(1));
  const std::string line = met.LineOf(std::string(1 << 20, 'x') + "\n", "1\n2\x1b[2J", "h");
  EXPECT_LT(line.size(), 400u);
  EXPECT_EQ(line.find_first_of("\n\x1b"), line.npos) << line;
}

}  // namespace
}  // namespace baton::worker
