// A job whose lanes lead to several ranks of a decode worker, each by a way of its own.
#include <gtest/gtest.h>

#include "prefill_worker/handoff/push.h"

namespace baton::prefill {
namespace {

const JobKey kRanksKey{"request", 0, 1};
constexpr PeerId kLeft = 3, kRight = 4;
constexpr LaneKey LaneOf(uint32_t lane) { return {9, 1, lane}; }

/// Two lanes of one segment each, to two peers.
struct TwoWays {
  TwoWays() {
    Do(Tick{});
    Prefill order{kRanksKey, kLeft, 9, {}, 42, {{60}, {60}}, std::chrono::seconds(10)};
    order.slot_bytes = 100;
    order.lane_peers = {kLeft, kRight};
    Do(order);
  }
  void Do(const Event& event) { actions.clear(), push.Handle(event, now, actions); }
  /// A peer's answers, until its lane is over.
  void Finish(PeerId peer, uint32_t lane) {
    Do(FromDecode{peer, LaneBound{LaneOf(lane), {{5, 1}}}});
    Do(Computed{kRanksKey, lane, {0}}), Do(Written{peer, LaneOf(lane), {5, 1}, {}});
    Do(FromDecode{peer, LaneVerified{LaneOf(lane)}});
    Do(Drained{peer, LaneOf(lane)}), Do(Flushed{peer, LaneOf(lane), true});
    Do(FromDecode{peer, LaneClosedAck{LaneOf(lane)}});
  }
  LanePhase phase(uint32_t lane) const { return push.Find(kRanksKey)->lanes[lane].phase; }
  template <class T>
  std::vector<T> Found() const {
    std::vector<T> found;
    for (const Action& action : actions) {
      if (const T* one = std::get_if<T>(&action)) found.push_back(*one);
    }
    return found;
  }

  Push push{PushOptions{}};
  TimePoint now{std::chrono::seconds(1)};
  std::vector<Action> actions;
};

TEST(PushToRanks, EachLaneIsOpenedWithItsOwnPeer) {
  TwoWays d;
  const auto sent = d.Found<SendToDecode>();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].peer, kLeft);
  EXPECT_EQ(sent[1].peer, kRight);
}

TEST(PushToRanks, WhatAPeerSaysOfAnothersLaneIsNotHeard) {
  TwoWays d;
  d.Do(FromDecode{kLeft, LaneBound{LaneOf(1), {{5, 1}}}});
  EXPECT_EQ(d.phase(1), LanePhase::kOpening);
  d.Do(FromDecode{kRight, LaneBound{LaneOf(1), {{5, 1}}}});
  EXPECT_EQ(d.phase(1), LanePhase::kOpen);
}

TEST(PushToRanks, TheSourceStaysUntilEveryLaneIsFlushed) {
  TwoWays d;
  d.Finish(kLeft, 0);
  d.Do(FromDecode{kRight, LaneBound{LaneOf(1), {{5, 1}}}});
  d.Do(ComputeEnded{kRanksKey, {}});
  EXPECT_TRUE(d.Found<ReleaseSource>().empty());
  EXPECT_FALSE(d.push.Find(kRanksKey)->Over());
  d.Finish(kRight, 1);
  EXPECT_TRUE(d.push.Find(kRanksKey)->Over());
}

TEST(PushToRanks, APeerThatIsLostEndsTheJobAndClosesTheOthersLanes) {
  TwoWays d;
  d.Do(FromDecode{kLeft, LaneBound{LaneOf(0), {{5, 1}}}});
  d.Do(PeerLost{kRight});
  EXPECT_EQ(d.phase(1), LanePhase::kOver);
  EXPECT_EQ(d.phase(0), LanePhase::kFlushing) << "it is flushed and closed in order: its slots come back";
  ASSERT_EQ(d.Found<FlushLane>().size(), 1u);
  EXPECT_EQ(d.Found<FlushLane>()[0].peer, kLeft);
  ASSERT_EQ(d.Found<Reply>().size(), 1u);
  EXPECT_TRUE(absl::IsUnavailable(d.Found<Reply>()[0].status));
}

TEST(PushToRanks, APeerThatIsSilentIsCutOffAndNoOther) {
  TwoWays d;
  for (int i = 0; i < 100 && d.Found<CutPeer>().empty(); ++i) {
    d.now += OwnTime::kTick;
    d.Do(FromDecode{kLeft, LaneBusy{LaneOf(0)}});
    d.Do(Tick{});
  }
  ASSERT_EQ(d.Found<CutPeer>().size(), 1u);
  EXPECT_EQ(d.Found<CutPeer>()[0].peer, kRight);
}

}  // namespace
}  // namespace baton::prefill
