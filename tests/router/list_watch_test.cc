// An API server that goes away, comes back as another or forgets, on a clock that the test moves. The sockets around
// this meet a recorded server in tests/cluster/test_discovery.py.
#include "router/discovery/list_watch.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace baton::router {
namespace {

using Turn = ListWatch::Turn;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

const absl::Status kOk, kGone = absl::UnavailableError("connecting: Connection refused"),
                        kForgotten = absl::OutOfRangeError("410");

/// A list that came whole, behind which a watch is open.
ListWatch Watching() {
  ListWatch turns;
  EXPECT_EQ(turns.Begin(false), Turn::kList);
  EXPECT_EQ(turns.End(kOk, milliseconds(5)).pause, Duration::zero());
  EXPECT_EQ(turns.Begin(true), Turn::kWatch);
  turns.Opened();
  return turns;
}

TEST(ListWatch, AWatchThatEndsInTimeOrBreaksOffGoesOnFromItsVersion) {
  ListWatch turns = Watching();
  EXPECT_EQ(turns.End(kOk, seconds(240)).pause, Duration::zero());
  EXPECT_EQ(turns.Begin(true), Turn::kWatch);
  turns.Opened();
  const ListWatch::Ended broken = turns.End(absl::UnavailableError("the connection ended"), seconds(100));
  EXPECT_TRUE(broken.failed);
  EXPECT_EQ(broken.pause, ListWatch::kFirstPause);
  EXPECT_EQ(turns.Begin(true), Turn::kWatch);
}

/// `answers_after`: what a try in vain takes: at once where nobody listens, the patience with a silent server where its
/// host is cut off.
void AwayForAnHour(Duration answers_after) {
  ListWatch turns = Watching();
  turns.End(absl::UnavailableError("the connection ended"), seconds(30));
  Duration away{}, longest{};
  int tries = 0;
  EXPECT_EQ(turns.Begin(true), Turn::kWatch);
  while (away < hours(1)) {
    const ListWatch::Ended ended = turns.End(kGone, answers_after);
    EXPECT_TRUE(ended.failed) << "people hear of it";
    longest = std::max(longest, ended.pause);
    away += answers_after + ended.pause;
    ++tries;
    ASSERT_EQ(turns.Begin(true), Turn::kList) << "it may be another server that comes";
  }
  EXPECT_EQ(longest, ListWatch::kLongestPause) << "whoever is back is found within that";
  EXPECT_LE(tries, hours(1) / ListWatch::kLongestPause + 8) << "a server that is down is not stormed";
  EXPECT_EQ(turns.End(kOk, milliseconds(5)).pause, Duration::zero());
  EXPECT_EQ(turns.Begin(true), Turn::kWatch);
  turns.Opened();
  EXPECT_EQ(turns.End(kGone, seconds(1)).pause, ListWatch::kFirstPause) << "the pauses of that hour are over";
}

TEST(ListWatch, AServerThatIsGoneForAnHourIsListedAgain) { AwayForAnHour(milliseconds(1)); }
TEST(ListWatch, AServerThatIsSilentForAnHourIsListedAgain) { AwayForAnHour(seconds(15)); }

TEST(ListWatch, A410ListsAgainAndIsNoFailureAndNotHurried) {
  ListWatch turns = Watching();
  Duration last{};
  for (int i = 0; i < 3; ++i) {
    const ListWatch::Ended ended = turns.End(kForgotten, milliseconds(2));
    EXPECT_FALSE(ended.failed);
    EXPECT_GT(ended.pause, Duration::zero());
    last = ended.pause;
    ASSERT_EQ(turns.Begin(true), Turn::kList);
  }
  EXPECT_EQ(last, 4 * ListWatch::kFirstPause);
}

TEST(ListWatch, ALineThatIsNoEventListsAgain) {
  ListWatch turns = Watching();
  EXPECT_TRUE(turns.End(absl::InvalidArgumentError("no event"), seconds(9)).failed);
  EXPECT_EQ(turns.Begin(true), Turn::kList);
}

TEST(ListWatch, AWatchThatEndsAtOnceAgainAndAgainIsNotHurried) {
  ListWatch turns = Watching();
  EXPECT_EQ(turns.End(kOk, milliseconds(1)).pause, ListWatch::kFirstPause);
  EXPECT_EQ(turns.Begin(true), Turn::kWatch);
  turns.Opened();
  EXPECT_EQ(turns.End(kOk, milliseconds(1)).pause, 2 * ListWatch::kFirstPause);
}

TEST(ListWatch, AListThatFailsHalfwayBeginsAnew) {
  ListWatch turns;
  EXPECT_EQ(turns.Begin(false), Turn::kList);
  EXPECT_TRUE(turns.End(kGone, seconds(1)).failed);
  EXPECT_EQ(turns.Begin(false), Turn::kList);
}

}  // namespace
}  // namespace baton::router
