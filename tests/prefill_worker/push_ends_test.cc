// What a push job says at the end of a lane, what it counts, and what it does not take along to the next.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "prefill_worker/handoff/push.h"

namespace baton::prefill {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr PeerId kPeer = 3;
const LaneKey kFirstLane{9, 1, 0};

struct WordOf {
  std::string operator()(const SendToDecode& a) const { return std::visit(*this, a.message); }
  std::string operator()(const OpenLane&) const { return "Open"; }
  std::string operator()(const SlotFull& m) const { return "Full" + std::to_string(m.segments.at(0)); }
  std::string operator()(const LaneDone& m) const { return "Done" + std::to_string(m.segments); }
  std::string operator()(const LaneClosed& m) const { return m.flushed ? "Closed" : "Dirty"; }
  std::string operator()(const WriteSlot& a) const { return "Write" + std::to_string(a.segments.at(0)); }
  std::string operator()(const FlushLane&) const { return "Flush"; }
  std::string operator()(const CutPeer&) const { return "Cut"; }
  std::string operator()(const Reply& a) const { return std::string(absl::StatusCodeToString(a.status.code())); }
  std::string operator()(const StopCompute&) const { return "StopCompute"; }
  std::string operator()(const ReleaseSource&) const { return "Release"; }
  std::string operator()(const CancelAnswer&) const { return "Cancelled"; }
};

/// One lane of two segments of 60 bytes, one to a slot of 100.
class PushEnds : public testing::Test {
 protected:
  PushEnds() { Do(Tick{}); }
  static PushOptions Options() {
    PushOptions options;
    options.slot_bytes = 100;
    return options;
  }
  std::vector<std::string> Do(const Event& event) {
    std::vector<Action> actions;
    push.Handle(event, now, actions);
    std::vector<std::string> words;
    for (const Action& action : actions) words.push_back(std::visit(WordOf{}, action));
    return words;
  }
  std::vector<std::string> Hear(ToPrefill message) { return Do(FromDecode{kPeer, std::move(message)}); }
  /// All that is said meanwhile.
  std::vector<std::string> Listen(Duration time) {
    std::vector<std::string> all;
    for (const TimePoint end = now + time; now < end;) {
      now += OwnTime::kTick;
      for (std::string& word : Do(Tick{})) all.push_back(std::move(word));
    }
    return all;
  }
  static Prefill Leg(const std::string& request, TicketId ticket = 9) {
    return {{request, 0, 1}, kPeer, ticket, {}, 42, {{60, 60}}, seconds(100)};
  }
  /// Both segments are written into slots 5 and 6, and neither is answered.
  void Write() {
    Do(Leg("r")), Do(Computed{{"r", 0, 1}, 0, {0, 1}}), Do(ComputeEnded{{"r", 0, 1}, {}});
    Hear(LaneBound{kFirstLane, {{5, 1}, {6, 1}}});
    EXPECT_THAT(Do(Written{kPeer, kFirstLane, {5, 1}, {}}), ElementsAre("Full0"));
    EXPECT_THAT(Do(Written{kPeer, kFirstLane, {6, 1}, {}}), ElementsAre("Full1", "Done2")) << "with the last, at once";
  }

  Push push{Options()};
  TimePoint now{seconds(1)};
};

TEST_F(PushEnds, ASegmentThatIsSentAgainIsFollowedByDoneAgain) {
  Write();
  EXPECT_THAT(Hear(SlotFree{kFirstLane, {6, 2}, false}), ElementsAre("Write1"));
  EXPECT_THAT(Do(Written{kPeer, kFirstLane, {6, 2}, {}}), ElementsAre("Full1", "Done2"));
  EXPECT_EQ(push.Stats().resent_segments, 1);
}

TEST_F(PushEnds, ALaneThatHasNothingToSendIsDoneWhenItIsBound) {
  Prefill nothing = Leg("r");
  nothing.lanes = {{}};
  Do(nothing);
  EXPECT_THAT(Hear(LaneBound{kFirstLane, {{5, 1}}}), ElementsAre("Done0"));
}

TEST_F(PushEnds, AnEpochOfATicketIsOneLegs) {
  Do(Leg("r"));
  EXPECT_THAT(Do(Leg("another")), ElementsAre("INVALID_ARGUMENT"));
  EXPECT_THAT(Do(Leg("another", 10)), ElementsAre("Open"));
}

TEST_F(PushEnds, WhatAPeerThatWasLostOwedIsNotAskedOfTheNext) {
  Write();
  Listen(seconds(3));
  Do(PeerLost{kPeer});
  Do(Leg("next", 10)), Do(Computed{{"next", 0, 1}, 0, {0}});
  Hear(LaneBusy{{77, 1, 0}});
  Do(PeerLost{99});
  EXPECT_THAT(Listen(seconds(2)), testing::Not(testing::Contains("Cut")));
}

TEST_F(PushEnds, APeerIsCutOnceForItsSilence) {
  Write();
  const std::vector<std::string> said = Listen(milliseconds(4400));
  EXPECT_EQ(std::ranges::count(said, "Cut"), 1);
}

TEST_F(PushEnds, AnEndedFlushIsAnAnswerOfThePeer) {
  Write();
  Hear(LaneVerified{kFirstLane});
  Listen(seconds(3));
  Do(Flushed{kPeer, kFirstLane, true});
  EXPECT_THAT(Listen(seconds(3)), testing::Not(testing::Contains("Cut"))) << "Closed was said a moment ago";
}

TEST_F(PushEnds, AJobWithoutLanesLosesNothingWithItsPeer) {
  Prefill none = Leg("r");
  none.lanes.clear();
  Do(none);
  EXPECT_THAT(Do(PeerLost{kPeer}), IsEmpty());
}

TEST_F(PushEnds, ALaneIsSaidToBeAliveOnceASecond) {
  Do(Leg("r")), Hear(LaneBound{kFirstLane, {{5, 1}}});
  const std::vector<std::string> said = Listen(seconds(5));
  EXPECT_GE(std::ranges::count(said, "Open"), 4);
  EXPECT_LE(std::ranges::count(said, "Open"), 6);
}

TEST_F(PushEnds, StatsSayWhatLivesAndWhatWentWrong) {
  Do(Leg("r")), Do(Leg("other", 10));
  EXPECT_EQ(push.Stats().jobs, 2);
  EXPECT_EQ(push.Stats().open_lanes, 2);
  EXPECT_EQ(push.Stats().held_sources, 2);
  Do(Computed{{"r", 0, 1}, 0, {0, 1}}), Do(ComputeEnded{{"r", 0, 1}, {}});
  Hear(LaneBound{kFirstLane, {{5, 1}, {6, 1}}});
  Do(Written{kPeer, kFirstLane, {5, 1}, absl::DataLossError("stale")});
  EXPECT_EQ(push.Stats().source_mismatches, 1);
  Do(Flushed{kPeer, kFirstLane, false});
  EXPECT_EQ(push.Stats().unclean_closes, 1);
  EXPECT_EQ(push.Stats().held_sources, 1);
  Hear(LaneClosedAck{kFirstLane});
  EXPECT_EQ(push.Stats().jobs, 1);
  EXPECT_EQ(push.Stats().open_lanes, 1);
  Do(Computed{{"other", 0, 1}, 0, {0, 1}}), Do(ComputeEnded{{"other", 0, 1}, {}});
  Hear(LaneBusy{{10, 1, 0}});
  Listen(milliseconds(300));
  EXPECT_EQ(push.Stats().no_room, 1);
}

}  // namespace
}  // namespace baton::prefill
