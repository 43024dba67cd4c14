// Every (lane phase, event) pair of a push job, as one table: next phase and what is done, in order.
// "=": nothing at all. One lane of three segments, one segment to a slot, two slots granted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "prefill_worker/handoff/push.h"
#include "tests/state_table.h"

namespace baton::prefill {
namespace {

constexpr std::array kStates = {"none", "Opening", "Open", "Done", "Flushing", "Closing", "Over"};
const JobKey kKey{"request", 0, 1};
const LaneKey kLane{9, 1, 0};

struct NameOf {
  std::string operator()(const SendToDecode& a) const { return std::visit(*this, a.message); }
  std::string operator()(const OpenLane&) const { return "Open!"; }
  std::string operator()(const SlotFull& m) const { return "Full" + std::to_string(m.segments.at(0)); }
  std::string operator()(const LaneDone&) const { return "Done!"; }
  std::string operator()(const LaneClosed& m) const { return m.flushed ? "Closed!" : "Dirty!"; }
  std::string operator()(const WriteSlot& a) const { return "Write" + std::to_string(a.segments.at(0)); }
  std::string operator()(const FlushLane&) const { return "Flush"; }
  std::string operator()(const CutPeer&) const { return "Cut"; }
  std::string operator()(const Reply& a) const {
    return a.no_room ? "NoRoom" : "Reply(" + std::string(absl::StatusCodeToString(a.status.code())) + ")";
  }
  std::string operator()(const StopCompute&) const { return "StopCompute"; }
  std::string operator()(const ReleaseSource&) const { return "Release"; }
  std::string operator()(const CancelAnswer& a) const { return a.known ? "Cancelled" : "Tombstone"; }
};

class Driver {
 public:
  Driver() { Do(Tick{}); }
  static PushOptions Options() {
    PushOptions options;
    options.slot_bytes = 100;
    options.most_tombstones = 6;
    return options;
  }
  void Do(const Event& event) { actions.clear(), push.Handle(event, now, actions); }
  /// Time goes by, and this side listens. Of what it repeats, `actions` keeps the first.
  void Listen(Duration time) {
    std::vector<Action> all;
    std::set<std::string> said;
    for (const TimePoint end = now + time; now < end;) {
      now += std::min<Duration>(OwnTime::kTick, end - now);
      Do(Tick{});
      std::set<std::string> names;
      for (const Action& action : actions) {
        const std::string name = std::visit(NameOf{}, action);
        if (!said.contains(name)) all.push_back(action);
        names.insert(name);
      }
      said.merge(names);
    }
    actions = std::move(all);
  }
  /// Time goes by while this side is stopped.
  void StandStill(Duration time) { now += time, Do(Tick{}); }
  void Hear(ToPrefill message) { Do(FromDecode{3, std::move(message)}); }
  Prefill MakePrefill() const { return {kKey, 3, 9, {}, 42, {{60, 60, 60}}, std::chrono::seconds(10)}; }

  Push push{Options()};
  TimePoint now{std::chrono::seconds(1)};
  std::vector<Action> actions;
};

/// Open: computed to the end and answered, segments 0 and 1 written into slots 5 and 6, segment 2 waits for a slot.
/// Done: all written, slots 5 (segment 2) and 6 not answered. Flushing, Closing, Over: after Verified.
void Enter(Driver& d, const std::string& state) {
  if (state == "none") return;
  d.Do(d.MakePrefill());
  d.Do(Computed{kKey, 0, {0, 1}});
  if (state == "Opening") return;
  d.Hear(LaneBound{kLane, {{5, 1}, {6, 1}}});
  d.Do(Written{3, kLane, {5, 1}, {}}), d.Do(Written{3, kLane, {6, 1}, {}});
  d.Do(Computed{kKey, 0, {2}}), d.Do(ComputeEnded{kKey, {}});
  if (state == "Open") return;
  d.Hear(SlotFree{kLane, {5, 2}, true});
  d.Do(Written{3, kLane, {5, 2}, {}});
  if (state == "Done") return;
  d.Hear(LaneVerified{kLane});
  if (state == "Flushing") return;
  d.Do(Flushed{3, kLane, true});
  if (state == "Over") d.Hear(LaneClosedAck{kLane});
}

std::string StateName(const Driver& d) {
  const PushJob* job = d.push.Find(kKey);
  return job == nullptr ? kStates[0] : kStates[static_cast<size_t>(job->lanes[0].phase) + 1];
}

using Apply = std::function<void(Driver&)>;
const std::vector<std::pair<std::string, Apply>>& Events() {
  using std::chrono::milliseconds, std::chrono::seconds;
  static const std::vector<std::pair<std::string, Apply>> events = {
      {"Prefill", [](auto& d) { d.Do(d.MakePrefill()); }},
      {"Cancel", [](auto& d) { d.Do(Cancel{kKey}); }},
      {"ComputeEnded", [](auto& d) { d.Do(ComputeEnded{kKey, {}}); }},
      {"ComputeEnded, failed", [](auto& d) { d.Do(ComputeEnded{kKey, absl::InternalError("x")}); }},
      {"Bound", [](auto& d) { d.Hear(LaneBound{kLane, {{5, 1}, {6, 1}}}); }},
      {"Busy", [](auto& d) { d.Hear(LaneBusy{kLane}); }},
      {"Busy, then 5 ms", [](auto& d) { d.Hear(LaneBusy{kLane}), d.now += milliseconds(5), d.Do(Tick{}); }},
      {"Busy, elsewhere", [](auto& d) { d.Hear(LaneBusy{kLane, true}), d.Do(ComputeEnded{kKey, {}}), d.Do(Tick{}); }},
      {"Gone", [](auto& d) { d.Hear(LaneGone{kLane, "why"}); }},
      {"SlotFree", [](auto& d) { d.Hear(SlotFree{kLane, {6, 2}, true}); }},
      {"SlotFree twice", [](auto& d) { d.Hear(SlotFree{kLane, {6, 2}, true}), d.Hear(SlotFree{kLane, {6, 2}, true}); }},
      {"Again", [](auto& d) { d.Hear(SlotFree{kLane, {6, 2}, false}); }},
      {"Verified", [](auto& d) { d.Hear(LaneVerified{kLane}); }},
      {"ClosedAck", [](auto& d) { d.Hear(LaneClosedAck{kLane}); }},
      {"Written twice", [](auto& d) { d.Do(Written{3, kLane, {6, 1}, {}}); }},
      {"Write fails",
       [](auto& d) {
         d.Hear(SlotFree{kLane, {5, 2}, true});
         d.Do(Written{3, kLane, {5, 2}, absl::UnavailableError("x")});
       }},
      {"Source is stale",
       [](auto& d) {
         d.Hear(SlotFree{kLane, {5, 2}, true});
         d.Do(Written{3, kLane, {5, 2}, absl::DataLossError("x")});
       }},
      {"Drained", [](auto& d) { d.Do(Drained{3, kLane}); }},
      {"Flushed", [](auto& d) { d.Do(Flushed{3, kLane, true}); }},
      {"Flush failed", [](auto& d) { d.Do(Flushed{3, kLane, false}); }},
      {"PeerLost", [](auto& d) { d.Do(PeerLost{3}); }},
      {"Tick", [](auto& d) { d.Do(Tick{}); }},
      {"Tick, no answer", [](auto& d) { d.now += milliseconds(260), d.Do(Tick{}); }},
      {"Tick, 4 s of silence", [](auto& d) { d.Listen(seconds(4)); }},
      {"Tick, nothing taken for 8 s",
       [](auto& d) {
         std::vector<Action> all;
         for (int i = 0; i < 80; ++i) {
           d.Hear(LaneBusy{{77, 1, 0}});  // the peer speaks of others
           d.Listen(milliseconds(100));
           for (const Action& action : d.actions) {
             if (!std::holds_alternative<SendToDecode>(action)) all.push_back(action);
           }
         }
         d.actions = std::move(all);
       }},
      {"Stood still 9 s", [](auto& d) { d.StandStill(seconds(9)); }},
      {"Tick, near expiry", [](auto& d) { d.Listen(milliseconds(9600)); }},
      {"Tick, long after", [](auto& d) { d.Listen(seconds(200)); }},
  };
  return events;
}

std::string Outcome(const std::string& state, const Apply& apply) {
  Driver d;
  Enter(d, state);
  const std::string before = StateName(d);
  EXPECT_EQ(before, state);
  d.actions.clear();
  apply(d);
  std::string done;
  for (const Action& action : d.actions) done += std::visit(NameOf{}, action) + " ";
  if (!done.empty()) done.pop_back();
  return CellOf(before, StateName(d), done);
}

// event | one cell per phase
constexpr const char* kTable = R"(
Prefill             | →Opening Open! | = | Reply(OK) | Reply(OK) | Reply(OK) | Reply(OK) | Reply(OK)
Cancel              | Tombstone | →Flushing Cancelled Reply(CANCELLED) StopCompute Flush | →Flushing Cancelled Flush | →Flushing Cancelled Flush | Cancelled | Cancelled | Cancelled
ComputeEnded        | = | = | = | = | = | = | =
ComputeEnded, failed| = | →Flushing Reply(INTERNAL) Flush | = | = | = | = | =
Bound               | = | →Open Write0 Write1 | = | = | = | = | =
Busy                | = | = | = | = | = | = | =
Busy, then 5 ms     | = | Open! | = | = | = | = | =
Busy, elsewhere     | = | →Flushing NoRoom Flush | = | = | = | = | =
Gone                | = | →Flushing Reply(UNAVAILABLE) StopCompute Flush | →Flushing Flush | →Flushing Flush | = | = | =
SlotFree            | = | = | Write2 | = | = | = | =
SlotFree twice      | = | = | = | = | = | = | =
Again               | = | = | Write1 | →Open Write1 | = | = | =
Verified            | = | = | →Flushing Flush | →Flushing Flush | = | = | =
ClosedAck           | = | = | = | = | = | →Over | =
Written twice       | = | = | = | = | = | = | =
Write fails         | = | = | →Flushing Flush | = | = | = | =
Source is stale     | = | = | →Flushing Flush | = | = | = | =
Drained             | = | = | = | = | Release | = | =
Flushed             | = | = | = | = | →Closing Closed! Release | = | =
Flush failed        | = | = | = | = | →Closing Dirty! Release | = | =
PeerLost            | = | →Over Reply(UNAVAILABLE) StopCompute | →Over Release | →Over Release | →Over Release | →Over | =
Tick                | = | = | = | = | = | = | =
Tick, no answer     | = | Open! | Full0 Full1 | Full2 Full1 Done! | = | Closed! | =
Tick, 4 s of silence| = | Open! Cut | Full0 Full1 Cut | Full2 Full1 Done! Cut | Cut | Closed! Cut | =
Tick, nothing taken for 8 s | = | = | →Flushing Flush | →Flushing Flush | = | = | =
Stood still 9 s     | = | Open! | Full0 Full1 | Full2 Full1 Done! | = | Closed! | =
Tick, near expiry   | = | →Flushing Open! Cut Reply(DEADLINE_EXCEEDED) StopCompute Flush | →Flushing Full0 Full1 Cut Flush | →Flushing Full2 Full1 Done! Cut Flush | Cut | Closed! Cut | =
Tick, long after    | = | →Flushing Open! Cut Reply(DEADLINE_EXCEEDED) StopCompute Flush | →Flushing Full0 Full1 Cut Flush | →Flushing Full2 Full1 Done! Cut Flush | Cut | →none Closed! Cut | →none
)";

TEST(PushTable, EveryEventInEveryPhaseDoesWhatItsCellSays) {
  ExpectEveryCell(kTable, kStates, Events(),
                  [](const auto&, const std::string& state, const Apply& apply) { return Outcome(state, apply); });
}

std::vector<std::string> NamesOf(const Driver& d) {
  std::vector<std::string> names;
  for (const Action& action : d.actions) names.push_back(std::visit(NameOf{}, action));
  return names;
}

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Push, ClosedIsSaidAgainOnlyWhenNoAnswerHasComeForAWhile) {
  Driver d;
  Enter(d, "Flushing");
  d.now += Driver::Options().repeat_after * 9 / 10;
  d.Do(Flushed{3, kLane, true});
  d.now += Driver::Options().repeat_after / 2;
  d.Do(Tick{});
  EXPECT_THAT(NamesOf(d), IsEmpty());
  d.now += Driver::Options().repeat_after;
  d.Do(Tick{});
  EXPECT_THAT(NamesOf(d), ElementsAre("Closed!"));
}

TEST(Push, AnOpenLaneThatHasNothingToSaySaysThatItIsAliveAndAsksNothing) {
  Driver d;
  d.Do(d.MakePrefill()), d.Hear(LaneBound{kLane, {{5, 1}}});
  for (int second = 0; second < 9; ++second) {
    d.Listen(std::chrono::milliseconds(1000));
    EXPECT_THAT(NamesOf(d), ElementsAre("Open!")) << "no Cut: nothing was asked";
  }
}

TEST(Push, AJobOfWhichSomethingIsTakenNowAndThenGoesOn) {
  Driver d;
  Prefill long_one = d.MakePrefill();
  long_one.expiry = std::chrono::seconds(100);
  d.Do(long_one), d.Do(Computed{kKey, 0, {0, 1}});
  d.Hear(LaneBound{kLane, {{5, 1}}});
  d.Do(Written{3, kLane, {5, 1}, {}});
  const auto wait = [&d](int seconds) {
    for (int i = 0; i < seconds * 10; ++i) d.Hear(LaneBusy{{77, 1, 0}}), d.Listen(std::chrono::milliseconds(100));
  };
  wait(7), d.Hear(SlotFree{kLane, {5, 2}, true});
  wait(7), d.Do(Written{3, kLane, {5, 2}, {}});
  wait(7), d.Hear(SlotFree{kLane, {5, 3}, true});
  wait(20);
  EXPECT_EQ(StateName(d), "Open") << "segment 2 is still computed: the peer owes nothing";
  d.Do(Computed{kKey, 0, {2}});
  wait(7);
  EXPECT_EQ(StateName(d), "Open");
  wait(1);
  EXPECT_EQ(StateName(d), "Flushing");
}

TEST(Push, NoRoomAtTheEndOfThePromptIsTold) {
  Driver d;
  d.Do(d.MakePrefill()), d.Hear(LaneBusy{kLane});
  d.Do(Computed{kKey, 0, {0, 1, 2}}), d.Do(ComputeEnded{kKey, {}});
  EXPECT_THAT(d.actions, IsEmpty());
  d.now += std::chrono::milliseconds(200), d.Do(Tick{});
  EXPECT_THAT(NamesOf(d), ElementsAre("NoRoom", "Flush"));
  d.Do(Flushed{3, kLane, true});
  EXPECT_THAT(NamesOf(d),
              ElementsAre("Closed!", "Release"));  // closed though never bound: a late Open must find it shut
}

TEST(Push, APromptThatIsComputedAndStillRefusedNearItsDeadlineFoundNoRoom) {
  Driver d;
  Prefill soon = d.MakePrefill();
  soon.expiry = std::chrono::milliseconds(600);
  d.Do(soon), d.Hear(LaneBusy{kLane});
  d.now += std::chrono::milliseconds(50);
  d.Do(Computed{kKey, 0, {0, 1, 2}}), d.Do(ComputeEnded{kKey, {}});
  d.now += std::chrono::milliseconds(50), d.Do(Tick{});
  EXPECT_THAT(NamesOf(d), ElementsAre("NoRoom", "Flush"));
}

TEST(Push, SourceStaysUntilTheLastLaneIsFlushed) {
  Driver d;
  Prefill two = d.MakePrefill();
  two.lanes.push_back({60});
  d.Do(two);
  const LaneKey other{9, 1, 1};
  for (const LaneKey& lane : {kLane, other}) d.Hear(LaneBound{lane, {{5 + lane.lane * 10, 1}}});
  d.Do(Computed{kKey, 1, {0}}), d.Do(Written{3, other, {15, 1}, {}});
  d.Do(Cancel{kKey});
  EXPECT_THAT(NamesOf(d), ElementsAre("Cancelled", "Reply(CANCELLED)", "StopCompute", "Flush", "Flush"));
  d.Do(ComputeEnded{kKey, absl::CancelledError("stopped")});
  d.Do(Flushed{3, kLane, true});
  EXPECT_THAT(NamesOf(d), ElementsAre("Closed!"));
  d.Do(Flushed{3, other, true});
  EXPECT_THAT(NamesOf(d), ElementsAre("Closed!", "Release"));
}

TEST(Push, CancelsThatNobodyAskedForAreNotRememberedWithoutEnd) {
  Driver d;
  const auto key = [](uint32_t epoch, const char* router = "") { return JobKey{"request", 0, epoch, router}; };
  for (uint32_t epoch = 1; epoch <= 5; ++epoch) d.Do(Cancel{key(epoch)});
  d.Do(Cancel{key(4, "another")});
  const auto begun = [&](uint32_t epoch, const char* router = "") {
    Prefill event = d.MakePrefill();
    event.key = key(epoch, router);
    d.Do(event);
    return d.push.Find(event.key) != nullptr;
  };
  EXPECT_FALSE(begun(3));
  EXPECT_FALSE(begun(4, "another")) << "each router has its own";
  EXPECT_TRUE(begun(4)) << "no room for a fourth: it ends with its lease";
}

TEST(Push, AfterAFailedWriteClosedSaysThatTheFlushProvesNothing) {
  Driver d;
  Enter(d, "Open");
  d.Hear(SlotFree{kLane, {5, 2}, true});
  d.Do(Written{3, kLane, {5, 2}, absl::UnavailableError("x")});
  d.Do(Flushed{3, kLane, true});
  EXPECT_THAT(NamesOf(d), ElementsAre("Dirty!", "Release"));
}

TEST(Push, PacksSegmentsOfALaneIntoOneSlotWhenTheyFit) {
  Driver d;
  Prefill small = d.MakePrefill();
  small.lanes = {{40, 40, 40}};
  d.Do(small), d.Do(Computed{kKey, 0, {0, 1, 2}});
  d.Hear(LaneBound{kLane, {{5, 1}, {6, 1}}});
  ASSERT_EQ(d.actions.size(), 2u);
  EXPECT_THAT(std::get<WriteSlot>(d.actions[0]).segments, ElementsAre(0, 1));
  EXPECT_THAT(std::get<WriteSlot>(d.actions[1]).segments, ElementsAre(2));
}

TEST(Push, SegmentsThatJustFillASlotGoTogether) {
  Driver d;
  Prefill half = d.MakePrefill();
  half.lanes = {{50, 50}};
  d.Do(half), d.Do(Computed{kKey, 0, {0, 1}});
  d.Hear(LaneBound{kLane, {{5, 1}, {6, 1}}});
  ASSERT_EQ(d.actions.size(), 1u);
  EXPECT_THAT(std::get<WriteSlot>(d.actions[0]).segments, ElementsAre(0, 1));
}

TEST(Push, AnAnswerForASlotThatIsStillBeingWrittenGrantsNothing) {
  Driver d;
  d.Do(d.MakePrefill()), d.Do(Computed{kKey, 0, {0, 1}});
  d.Hear(LaneBound{kLane, {{5, 1}}});
  d.Hear(SlotFree{kLane, {5, 2}, true});
  EXPECT_THAT(d.actions, IsEmpty());
}

TEST(Push, AnAnswerForAnotherTurnOfASlotGrantsNothing) {
  Driver d;
  d.Do(d.MakePrefill()), d.Do(Computed{kKey, 0, {0, 1}});
  d.Hear(LaneBound{kLane, {{5, 4}}});
  d.Do(Written{3, kLane, {5, 4}, {}});
  for (const uint32_t turn : {4u, 6u}) {
    d.Hear(SlotFree{kLane, {5, turn}, /*ok=*/false});
    EXPECT_THAT(d.actions, IsEmpty()) << turn;
  }
  d.Hear(SlotFree{kLane, {5, 5}, /*ok=*/false});
  EXPECT_THAT(d.actions, testing::SizeIs(1)) << "its own is sent again";
}

TEST(Push, ASlotThatItsWriterHasToldOfIsToldAgainOnlyWhenItIsNotAnswered) {
  Driver d;
  d.Do(d.MakePrefill()), d.Do(Computed{kKey, 0, {0}});
  d.Hear(LaneBound{kLane, {{5, 1}}});
  d.Do(Written{3, kLane, {5, 1}, {}, /*told=*/true});
  EXPECT_THAT(d.actions, IsEmpty());
  d.Listen(std::chrono::milliseconds(300));
  EXPECT_THAT(NamesOf(d), ElementsAre("Full0"));
  d.Listen(Driver::Options().peer_silence - std::chrono::milliseconds(300));
  EXPECT_THAT(NamesOf(d), testing::Contains("Cut")) << "it was asked by the write";
}

TEST(Push, AFailedWriteWasNotTold) {
  Driver d;
  d.Do(d.MakePrefill()), d.Do(Computed{kKey, 0, {0}});
  d.Hear(LaneBound{kLane, {{5, 1}}});
  d.Do(Written{3, kLane, {5, 1}, absl::UnavailableError("x")});
  EXPECT_THAT(NamesOf(d), ElementsAre("Reply(UNAVAILABLE)", "StopCompute", "Flush"));
}

TEST(Push, TheAnswerToAWriteMayWaitWhileTheLaneHasMoreToSend) {
  Driver d;
  d.Do(d.MakePrefill()), d.Do(Computed{kKey, 0, {0, 1}});
  d.Hear(LaneBound{kLane, {{5, 1}, {6, 1}}});
  EXPECT_TRUE(std::get<WriteSlot>(d.actions.at(0)).may_wait);
  EXPECT_TRUE(std::get<WriteSlot>(d.actions.at(1)).may_wait) << "segment 2 is not computed yet";
  for (const uint32_t slot : {5u, 6u}) d.Do(Written{3, kLane, {slot, 1}, {}});
  d.Hear(SlotFree{kLane, {5, 2}, true});
  d.Do(Computed{kKey, 0, {2}});
  EXPECT_FALSE(std::get<WriteSlot>(d.actions.at(0)).may_wait) << "LaneDone waits for it";
}

TEST(Push, RefusesASegmentThatNoSlotCanHold) {
  Driver d;
  Prefill big = d.MakePrefill();
  big.lanes = {{101}};
  d.Do(big);
  const absl::Status refused = std::get<Reply>(d.actions.at(0)).status;
  EXPECT_EQ(refused, absl::FailedPreconditionError("a segment of 101 bytes, a slot holds 100 (--landing-slot-bytes)"))
      << "others may do it";
}

TEST(Push, CancelThatOvertakesItsPrefillLeavesATombstone) {
  Driver d;
  d.Do(Cancel{kKey});
  d.Do(d.MakePrefill());
  EXPECT_THAT(NamesOf(d), ElementsAre("Reply(CANCELLED)"));
  d.now += std::chrono::seconds(60), d.Do(Tick{});
  d.Do(d.MakePrefill());
  EXPECT_THAT(NamesOf(d), ElementsAre("Open!"));
}

}  // namespace
}  // namespace baton::prefill
