// What callers leave unread on the streams of a worker, and who is cut off for it.
#include "worker/relay/open_streams.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>

#include "common/str_cat.h"

namespace baton::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct FakeStream final : OpenStream {
  Unread unread() const override { return now; }
  void CutOff(const absl::Status& status) override { why = std::string(status.message()); }
  Unread now;
  std::string why;
};

class Callers : public ::testing::Test {
 protected:
  FakeStream& Open(const std::string& peer, OpenStreams::Kind kind = OpenStreams::Kind::kWatch) {
    made_.push_back(std::make_shared<FakeStream>());
    numbers_.push_back(streams_.Enter(kind, peer, made_.back()));
    return *made_.back();
  }
  void Pass(Duration time) {
    for (const TimePoint until = clock_.Now() + time; clock_.Now() < until;) {
      clock_.Advance(milliseconds(100));
      streams_.Look();
    }
  }
  int CutOff() const {
    return static_cast<int>(std::ranges::count_if(made_, [](const auto& one) { return !one->why.empty(); }));
  }

  FakeClock clock_;
  OpenStreams streams_{clock_, {.of_connection = 2, .of_all = 5, .unread_bytes = 1000, .unread_time = seconds(30)}};
  std::deque<std::shared_ptr<FakeStream>> made_;
  std::vector<uint64_t> numbers_;
};

TEST_F(Callers, OfAConnectionHaveSoManyAndTheOldestGivesWay) {
  FakeStream &first = Open("ipv4:10.0.0.7:40"), &second = Open("ipv4:10.0.0.7:40");
  Open("ipv4:10.0.0.7:41");
  Open("ipv4:10.0.0.7:40", OpenStreams::Kind::kRelay);
  EXPECT_EQ(CutOff(), 0);
  FakeStream& third = Open("ipv4:10.0.0.7:40");
  EXPECT_EQ(first.why, "this Watch stream is ended: its connection has more than 2");
  EXPECT_EQ(second.why + third.why, "");
  streams_.Leave(numbers_[1]);
  Open("ipv4:10.0.0.7:40");
  EXPECT_EQ(CutOff(), 1) << "one had left";
}

TEST_F(Callers, OfAHostThatHasTheMostGiveWayFirstWhoTakesNothingThenTheConnectionWithMost) {
  const FakeStream& router = Open("ipv4:127.0.0.1:30");
  Open("ipv4:127.0.0.1:40");
  FakeStream& stuck = Open("ipv4:127.0.0.1:41");
  stuck.now.bytes = 1;
  const FakeStream& of_two = Open("ipv4:127.0.0.1:42");
  Open("ipv4:127.0.0.1:42");
  Pass(seconds(2));
  Open("ipv4:127.0.0.1:43");
  EXPECT_NE(stuck.why, "");
  Open("ipv4:127.0.0.1:44");
  EXPECT_NE(of_two.why, "");
  EXPECT_NE(Open("ipv4:127.0.0.1:45").why, "") << "all have one: the newest";
  EXPECT_EQ(router.why, "");
}

TEST_F(Callers, OfAllHostsTheOneWithMostGivesWay) {
  const FakeStream& router = Open("ipv6:%5Bfd00::1%5D:40");
  for (int i = 0; i < 8; ++i) Open(StrCat("ipv4:10.0.0.7:", i));
  EXPECT_EQ(router.why, "");
  EXPECT_EQ(CutOff(), 4);
  for (int i = 5; i <= 8; ++i)
    EXPECT_EQ(made_[static_cast<size_t>(i)]->why,
              "this Watch stream is ended: there are more than 5, and most are its host's");
  EXPECT_EQ(streams_.cut_off(), 4);
}

TEST_F(Callers, OfAnotherHostNobodyGivesWayHoweverLongItHasTakenNothing) {
  FakeStream& router = Open("ipv4:10.0.0.1:40");
  router.now.bytes = 1;
  Pass(seconds(2));
  for (int i = 0; i < 8; ++i) Open(StrCat("ipv4:10.0.0.7:", i));
  EXPECT_EQ(router.why, "");
}

/// Ends at once, as a stream may whose caller is gone.
struct EndingStream final : OpenStream {
  Unread unread() const override { return {}; }
  void CutOff(const absl::Status&) override { end(); }
  std::function<void()> end;
};

TEST_F(Callers, AStreamMayLeaveWhileItIsCutOff) {
  const auto first = std::make_shared<EndingStream>();
  int left = 0;
  const uint64_t number = streams_.Enter(OpenStreams::Kind::kWatch, "ipv4:10.0.0.7:40", first);
  first->end = [&] { streams_.Leave(number), ++left; };
  Open("ipv4:10.0.0.7:40"), Open("ipv4:10.0.0.7:40");
  EXPECT_EQ(left, 1);
  EXPECT_EQ(CutOff(), 0);
}

TEST_F(Callers, WithPrefillLegsHaveAsManyAsRun) {
  for (int i = 0; i < 100; ++i) Open("ipv4:10.0.0.7:40", OpenStreams::Kind::kPrefill);
  EXPECT_EQ(CutOff(), 0);
}

TEST_F(Callers, WhoTakeNothingForLongAreCutOffAndWhoTakeALittleAreNot) {
  FakeStream &none = Open("ipv4:10.0.0.7:40"), &some = Open("ipv4:10.0.0.7:41");
  const FakeStream& empty = Open("ipv4:10.0.0.7:42");
  none.now = {.bytes = 10, .taken = 7};
  some.now = {.bytes = 10, .taken = 7};
  Pass(seconds(29));
  ++some.now.taken;
  Pass(milliseconds(1100));
  EXPECT_EQ(CutOff(), 0) << "30 s after the first look";
  Pass(milliseconds(900));
  EXPECT_EQ(none.why, "this Watch stream is ended: 10 bytes wait, and nothing was taken for 30 s");
  EXPECT_EQ(some.why + empty.why, "");
  Pass(seconds(30));
  EXPECT_NE(some.why, "");
  EXPECT_EQ(empty.why, "") << "nothing waits for it";
}

TEST_F(Callers, AreNotCutOffForTheSleepOfTheWorker) {
  FakeStream& one = Open("ipv4:10.0.0.7:40");
  one.now = {.bytes = 10, .taken = 0};
  for (int i = 0; i < 5; ++i) {
    clock_.Advance(seconds(60));
    streams_.Look();
  }
  EXPECT_EQ(one.why, "");
}

TEST_F(Callers, WhoLeaveMostUnreadAreCutOffUntilTheRestFits) {
  const size_t unread[] = {300, 600, 700, 90};
  for (const size_t bytes : unread) Open(StrCat("ipv4:10.0.0.7:", bytes)).now.bytes = bytes;
  streams_.Look();
  EXPECT_NE(made_[2]->why, "");
  EXPECT_EQ(CutOff(), 1) << "the others leave 990 bytes";
  made_[3]->now.bytes = 101;
  streams_.Look();
  EXPECT_EQ(made_[1]->why,
            "this Watch stream is ended: 600 bytes wait there, the most of all, which are more than 1000");
  EXPECT_EQ(CutOff(), 2);
}

}  // namespace
}  // namespace baton::worker
