// What a ticket and a lane leave behind at their ends: places in the line, names, quarantine, and who was heard when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "handoff_driver.h"

namespace baton::decode {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

TEST(HandoffEnds, AReservationsExpiryCountsFromItsReserve) {
  HandoffDriver d;
  d.now += seconds(5);  // since the latest event
  const ReserveAnswer first = d.Reserve();
  d.now += seconds(4);
  const ReserveAnswer again = d.Reserve();
  EXPECT_EQ(first.expiry, seconds(10));
  EXPECT_EQ(again.expiry, seconds(6));
  d.StandStill(milliseconds(5999));
  EXPECT_EQ(d.state(), TicketState::kReserved);
  d.StandStill(milliseconds(1));
  EXPECT_EQ(d.state(), TicketState::kGone);
}

TEST(HandoffEnds, ATombstoneStandsForItsTimeFromTheCancel) {
  HandoffDriver d;
  d.now += seconds(30);  // since the latest event
  EXPECT_FALSE(d.Cancel(1));
  d.StandStill(seconds(59));
  EXPECT_TRUE(absl::IsCancelled(d.Reserve().status));
  d.StandStill(seconds(1));
  EXPECT_TRUE(d.Reserve().status.ok());
}

TEST(HandoffEnds, AForgottenTicketsNameIsFreeAgain) {
  HandoffDriver d;
  d.Reserve();
  d.Cancel(1);
  EXPECT_TRUE(absl::IsCancelled(d.Reserve().status));
  d.Listen(seconds(60));
  EXPECT_EQ(d.core.Find(1), nullptr);
  const ReserveAnswer again = d.Reserve();
  ASSERT_TRUE(again.status.ok()) << again.status;
  EXPECT_EQ(again.ticket, 2u);
}

TEST(HandoffEnds, OfAttachesThatWaitTheNewestStands) {
  HandoffDriver d;
  d.Reserve(), d.Bind();
  d.Do(d.MakeAttach(7)), d.Do(d.MakeAttach(6));
  ASSERT_NE(d.Find<AttachRefused>(), nullptr);
  EXPECT_EQ(d.Find<AttachRefused>()->attach_gen, 6u);
  EXPECT_EQ(d.Find<AttachRefused>()->reason, "attach_gen 7 came first");
  d.Do(d.MakeAttach(7));
  EXPECT_TRUE(d.actions.empty()) << "the same message again";
  d.Complete();
  EXPECT_EQ(d.Find<StartSequence>()->attach_gen, 7u);
}

TEST(HandoffEnds, ATenantMayHaveAsManyOverdueSlotsAsTheLimitSays) {
  HandoffDriver d;
  d.Reserve(), d.Bind(), d.Cancel(1);
  d.Listen(SmallOptions().cut_after);
  ASSERT_EQ(d.core.Stats().quarantined_slots, SmallOptions().max_quarantined_slots);
  EXPECT_TRUE(d.Reserve(2).status.ok());
}

TEST(HandoffEnds, WritersHaveTheirTimeToCloseFromTheStartOfTheSequenceOn) {
  HandoffDriver d;
  d.Reserve(), d.Bind(), d.Complete();
  d.Listen(seconds(2)), d.Do(d.MakeAttach(5));
  d.Listen(milliseconds(2900));
  EXPECT_EQ(d.Find<CutWriter>(), nullptr);
  d.Listen(milliseconds(100));
  EXPECT_NE(d.Find<CutWriter>(), nullptr);
}

/// Ticket 1 gives its slots back; whether 4 gets them at once.
bool TheNextIsBound(HandoffDriver& d) {
  d.GiveRoom();
  d.Do(d.MakeOpen(0, 1, 4));
  return d.Sent<LaneBound>() != nullptr;
}

TEST(HandoffEnds, WhoNeedsNoRoomAnyMoreKeepsNobodyWaiting) {
  HandoffDriver stays;
  stays.FillSlots();
  EXPECT_FALSE(TheNextIsBound(stays));
  HandoffDriver computes;
  computes.FillSlots();
  computes.Do(computes.MakeAttach(5, 0, 3));
  EXPECT_TRUE(TheNextIsBound(computes)) << "its prompt is computed here";
  HandoffDriver shed;
  shed.blocks.cached = 0;  // of ticket 4: the only one that pins something is 3
  shed.Reserve(1), shed.Reserve(2);
  shed.blocks.cached = 16;
  shed.Reserve(3);
  shed.blocks.cached = 0;
  shed.Reserve(4);
  shed.Bind(1, 1), shed.Bind(1, 2);
  shed.Do(shed.MakeOpen(0, 1, 3)), shed.Do(shed.MakeOpen(0, 1, 4));
  shed.Do(ShedUnbound{});
  ASSERT_EQ(shed.Find<ReservationShed>()->ticket, 3u);
  EXPECT_TRUE(TheNextIsBound(shed)) << "its blocks were given up";
}

/// Another ticket of the request of ticket 3.
ReserveOrder AttemptOfThird(const HandoffDriver& d, uint32_t attempt) {
  ReserveOrder again = d.MakeReserve(3);
  again.key.attempt = attempt;
  return again;
}

TEST(HandoffEnds, ARequestThatLeftForGoodComesBackBehindTheOthers) {
  HandoffDriver d;
  d.FillSlots();
  d.Cancel(3);
  d.Reserve(AttemptOfThird(d, 1)), d.Do(d.MakeOpen(0, 1, 5));
  EXPECT_TRUE(TheNextIsBound(d));
}

TEST(HandoffEnds, APlaceThatIsLeftTwiceIsKeptFromTheSecondTimeOn) {
  HandoffDriver d;
  d.expiry = seconds(1000);
  d.FillSlots();
  d.Cancel(3, /*asks_again=*/true);
  d.Listen(seconds(40));
  d.Reserve(AttemptOfThird(d, 1)), d.Do(d.MakeOpen(0, 1, 5));
  d.actions.clear();
  std::vector<Action> out;
  d.core.Cancel(AttemptOfThird(d, 1).key, /*asks_again=*/true, d.now, out);
  d.Listen(seconds(40));
  d.Reserve(AttemptOfThird(d, 2));
  d.Do(d.MakeOpen(0, 1, 4)), d.Do(d.MakeOpen(0, 1, 6));
  EXPECT_FALSE(TheNextIsBound(d)) << "it came first";
  d.Do(d.MakeOpen(0, 1, 6));
  EXPECT_NE(d.Sent<LaneBound>(), nullptr);
}

TEST(HandoffEnds, WhatIsComputedHereBecauseItsKvWasLostIsCounted) {
  HandoffDriver d;
  d.Reserve(1), d.Reserve(2), d.Bind();
  d.Do(d.MakeAttach(5)), d.Do(WriterLost{7});
  EXPECT_EQ(d.core.Stats().recomputes, 1);
  EXPECT_EQ(d.core.Stats().lanes_failed, 1);
  d.Do(d.MakeAttach(5, 0, 2));
  EXPECT_EQ(d.core.Stats().recomputes, 1) << "nobody computed this one before";
}

TEST(HandoffEnds, WhicheverMessageAWriterSendsItIsHeard) {
  using Say = void (*)(HandoffDriver&);
  const std::vector<std::pair<const char*, Say>> all = {
      {"Open", [](HandoffDriver& d) { d.Do(d.MakeOpen(1)); }},
      {"SlotFull", [](HandoffDriver& d) { d.Do(d.MakeFilled(0, {99, 1})); }},
      {"LaneDone", [](HandoffDriver& d) { d.Do(d.MakeDone(0, 9)); }},
      {"Closed", [](HandoffDriver& d) { d.Do(d.MakeClosed(0, true, 1, 99)); }}};
  for (const auto& [what, say] : all) {
    HandoffDriver d;
    d.expiry = seconds(100), d.fence = FenceKind::kPeerExit;
    d.Reserve(), d.Bind();
    for (int i = 0; i < 3; ++i) {
      d.Listen(seconds(4));
      EXPECT_EQ(d.Find<ReplaceMemory>(), nullptr) << what;
      say(d);
    }
    d.Listen(seconds(5));
    EXPECT_NE(d.Find<ReplaceMemory>(), nullptr) << "and then it is silent";
  }
}

TEST(HandoffEnds, WhatComesOfATicketKeepsItsDrainAndItsParkedAttachPatient) {
  HandoffDriver d;
  d.expiry = seconds(3600), d.lanes = {{0, 3}};
  d.Reserve(), d.Bind();
  d.core.Drain();
  d.Listen(seconds(3));
  const SlotTurn slot = d.Grant(0);
  d.Do(d.MakeFilled(0, slot));
  d.Listen(seconds(20));
  EXPECT_EQ(d.state(), TicketState::kReceiving) << "our own pass takes its time";
  d.Do(Scattered{{1, 1, 0}, slot, true});
  d.Listen(seconds(3));
  EXPECT_EQ(d.state(), TicketState::kReceiving) << "its writer may send more";
  d.Do(Filled{d.writer, {{1, 1, 0}, d.Grant(0), {0}}});  // placed already
  d.Listen(seconds(3));
  EXPECT_EQ(d.state(), TicketState::kReceiving);
  d.Do(Done{d.writer, {{1, 1, 0}, 3}});
  d.Listen(seconds(3));
  EXPECT_EQ(d.state(), TicketState::kReceiving);
  d.Do(d.MakeAttach(5));
  for (uint32_t segment : {1u, 2u}) {
    d.Listen(seconds(7));
    const SlotTurn next = d.Grant(0);
    d.Do(Filled{d.writer, {{1, 1, 0}, next, {segment}}});
    d.Listen(seconds(7));
    EXPECT_EQ(d.Find<StartSequence>(), nullptr);
    d.Do(Scattered{{1, 1, 0}, next, true});
  }
  ASSERT_NE(d.Find<StartSequence>(), nullptr);
  EXPECT_FALSE(d.Find<StartSequence>()->recompute);
}

TEST(HandoffEnds, ASlotIsInQuarantineFromTheEndOfOurPassUntilItsFence) {
  HandoffOptions options = SmallOptions();
  options.ring_slots = {8}, options.max_quarantined_slots = 1;
  HandoffDriver d(options);
  d.process = "p";
  for (int t : {1, 2, 3}) d.Reserve(t);
  d.Bind(1, 1);
  const SlotTurn slots[] = {d.Grant(0), d.Grant(1)};
  for (uint32_t lane : {0u, 1u}) d.Do(d.MakeFilled(lane, slots[lane]));
  d.Cancel(1);
  d.Do(d.MakeOpen(0, 1, 2));
  EXPECT_NE(d.Sent<LaneBound>(), nullptr) << "our passes will end";
  for (uint32_t lane : {0u, 1u}) d.Do(Scattered{{1, 1, lane}, slots[lane], true});
  d.Do(d.MakeOpen(0, 1, 3));
  EXPECT_NE(d.Sent<LaneBusy>(), nullptr) << "two slots wait for its fence";
  for (uint32_t lane : {0u, 1u}) d.Do(d.MakeClosed(lane));
  d.Do(d.MakeOpen(0, 1, 3));
  EXPECT_NE(d.Sent<LaneBound>(), nullptr);
}

TEST(HandoffEnds, AnAttachThatWaitedForAnEpochThatWasReplacedStartsNothing) {
  HandoffDriver d;
  d.Reserve(), d.Bind();
  d.Do(d.MakeAttach(5));
  d.writer = 8;
  d.Do(d.MakeOpen(0, 2));
  ASSERT_NE(d.Find<AttachRefused>(), nullptr);
  EXPECT_EQ(d.Find<AttachRefused>()->reason, "epoch 1 was replaced by 2");
  d.Do(d.MakeOpen(1, 2));
  d.Complete(2);
  EXPECT_EQ(d.Find<StartSequence>(), nullptr) << "its router was told that it is refused";
  EXPECT_EQ(d.state(), TicketState::kReady);
}

TEST(HandoffEnds, OpensThatFindNoRoomAreCounted) {
  HandoffDriver d;
  d.Reserve();
  d.blocks.room = false;
  d.Do(d.MakeOpen(0)), d.Do(d.MakeOpen(0));
  d.blocks.room = true;
  d.Do(d.MakeOpen(0));
  EXPECT_EQ(d.core.Stats().opens_refused, 2);
}

TEST(HandoffEnds, ALaneThatWasClosedBeforeItsFlushTakesNothingMore) {
  for (const FenceKind fence : {FenceKind::kForcedClose, FenceKind::kPeerExit}) {
    HandoffDriver d;
    d.fence = fence;
    d.Reserve(), d.Bind(), d.Complete();
    const SlotTurn slot = d.Grant(0);
    EXPECT_TRUE(d.core.MayLand(7, {1, 1, 0}, slot));
    d.Do(d.MakeClosed(0, /*flushed=*/false));
    EXPECT_FALSE(d.core.MayLand(7, {1, 1, 0}, slot));
    d.Do(d.MakeFilled(0, slot));
    EXPECT_NE(d.Sent<LaneGone>(), nullptr);
    d.Do(d.MakeOpen(0));
    ASSERT_NE(d.Sent<LaneGone>(), nullptr);
    EXPECT_THAT(d.Sent<LaneGone>()->reason,
                HasSubstr(fence == FenceKind::kPeerExit ? "the lane is closed" : "cut off"));
  }
}

TEST(HandoffEnds, AnEpochThatFailedIsNotOpenedAgain) {
  HandoffDriver d;
  d.Reserve(), d.Bind(), d.Do(WriterFenced{7});
  ASSERT_EQ(d.state(), TicketState::kRepair);
  d.Do(d.MakeOpen(0));
  ASSERT_NE(d.Sent<LaneGone>(), nullptr);
  EXPECT_EQ(d.Sent<LaneGone>()->reason, "epoch 1 is closed");
}

TEST(HandoffEnds, ATicketThatADrainEndsHasLapsedAndNothingFailed) {
  HandoffDriver d;
  d.expiry = seconds(3600);
  d.Reserve();
  d.core.Drain();
  d.Listen(SmallOptions().drain_patience);
  EXPECT_TRUE(d.core.Find(1)->lapsed);
}

TEST(HandoffEnds, AClosedTicketIsGoneWithItsLastLane) {
  HandoffDriver d;
  d.Reserve(), d.Bind(), d.Cancel(1);
  d.Do(d.MakeClosed(0));
  EXPECT_EQ(d.state(), TicketState::kClosing);
  d.Do(d.MakeClosed(1));
  EXPECT_EQ(d.state(), TicketState::kGone);
  EXPECT_EQ(d.core.Stats().tickets, 0);
}

// Their lanes are complete, and nothing of them is computed again: only the slots are still theirs.
TEST(HandoffEnds, SlotsOfALostWriterThatOnlyThisSideWritesAreFreeAtOnce) {
  for (const FenceKind fence : {FenceKind::kReceiverWrites, FenceKind::kForcedClose}) {
    HandoffDriver d;
    d.fence = fence;
    d.Reserve(), d.Bind(), d.Complete();
    ASSERT_EQ(d.state(), TicketState::kReady);
    ASSERT_EQ(d.core.ring(0).free_slots(), 2);
    d.Do(WriterLost{d.writer});
    EXPECT_EQ(d.core.ring(0).free_slots(), fence == FenceKind::kReceiverWrites ? 4 : 2);
    d.Do(WriterFenced{d.writer});
    EXPECT_EQ(d.core.ring(0).free_slots(), 4);
    EXPECT_EQ(d.state(), TicketState::kReady);
  }
}

}  // namespace
}  // namespace baton::decode
