#include "decode_worker/handoff/handoff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "handoff_driver.h"

namespace baton::decode {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(Handoff, ReservesByTokenBudgetAndBindsNothing) {
  HandoffDriver d;
  for (int i = 1; i <= 10; ++i) {
    const ReserveAnswer answer = d.Reserve(i);
    ASSERT_TRUE(answer.status.ok());
    EXPECT_EQ(answer.cached_tokens, 16);
  }
  EXPECT_EQ(Message(d.Reserve(11).status), "need 100 KV tokens, 0 of 1000 can be reserved");
  EXPECT_EQ(d.blocks.bound, 0);
  EXPECT_EQ(d.blocks.pins, 10);
}

TEST(Handoff, CancelBeforeItsReserveLeavesATombstoneForADeadline) {
  HandoffDriver d;
  EXPECT_FALSE(d.Cancel(1));
  EXPECT_TRUE(absl::IsCancelled(d.Reserve().status));
  d.now += seconds(60);
  d.Do(Tick{});
  EXPECT_TRUE(d.Reserve().status.ok());
}

TEST(Handoff, OpenBindsAllLanesOrNothing) {
  HandoffOptions options = SmallOptions();
  options.ring_slots = {7};
  HandoffDriver d(options);
  d.lanes = {{0, 1}, {0, 1}, {0, 1}};
  for (int t : {1, 2, 3}) d.Reserve(t);
  for (TicketId t : {1, 2}) {
    d.Do(d.MakeOpen(0, 1, t));
    EXPECT_NE(d.Sent<LaneBound>(), nullptr);
  }
  d.Do(d.MakeOpen(0, 1, 3));  // one slot is free, three are needed
  EXPECT_NE(d.Sent<LaneBusy>(), nullptr);
  EXPECT_EQ(d.core.Stats().granted_slots, 6);
  EXPECT_EQ(d.blocks.bound, 2);
}

TEST(Handoff, WaitingOpensAreBoundInTheOrderTheyCame) {
  HandoffDriver d;
  for (int t : {1, 2, 3, 4}) d.Reserve(t);
  d.Bind(1, 1), d.Bind(1, 2);
  d.Do(d.MakeOpen(0, 1, 3)), d.Do(d.MakeOpen(0, 1, 4));
  d.Cancel(1);
  for (uint32_t lane : {0u, 1u}) d.Do(d.MakeClosed(lane, true, 1, 1));
  d.Do(d.MakeOpen(0, 1, 4));
  EXPECT_NE(d.Sent<LaneBusy>(), nullptr) << "ticket 3 came first";
  d.Listen(seconds(1));  // ticket 3 does not ask again and loses its turn
  d.Do(d.MakeOpen(0, 1, 4));
  EXPECT_NE(d.Sent<LaneBound>(), nullptr);
}

/// The request of ticket 3 comes back as ticket 5.
ReserveOrder ThirdAgain(const HandoffDriver& d) {
  ReserveOrder again = d.MakeReserve(3);
  again.key.attempt = 1;
  return again;
}

TEST(Handoff, ARequestThatComesBackForRoomHasItsPlaceInTheLine) {
  HandoffDriver d;
  d.FillSlots();
  d.Cancel(3, /*asks_again=*/true);
  d.GiveRoom();
  d.Do(d.MakeOpen(0, 1, 4));
  EXPECT_NE(d.Sent<LaneBusy>(), nullptr) << "the room is kept for who came first, for a turn";
  d.Reserve(ThirdAgain(d));
  d.Do(d.MakeOpen(0, 1, 5));
  EXPECT_NE(d.Sent<LaneBound>(), nullptr);
}

TEST(Handoff, TheRoomOfARequestThatComesBackIsKeptForAWholeTurnFromItsCancel) {
  HandoffDriver d;
  d.FillSlots();
  d.Listen(SmallOptions().open_turn - std::chrono::milliseconds(200));
  d.Cancel(3, /*asks_again=*/true);
  d.GiveRoom();
  d.Listen(std::chrono::milliseconds(400));
  d.Do(d.MakeOpen(0, 1, 4));
  EXPECT_NE(d.Sent<LaneBusy>(), nullptr);
}

TEST(Handoff, ARequestThatIsLateToComeBackIsInFrontOfThoseBehindIt) {
  HandoffDriver d;
  d.FillSlots();
  d.Cancel(3, /*asks_again=*/true);
  d.now += seconds(5);  // at another decode worker, meanwhile
  d.Reserve(ThirdAgain(d));
  d.Do(d.MakeOpen(0, 1, 4)), d.Do(d.MakeOpen(0, 1, 5));
  d.GiveRoom();
  d.Do(d.MakeOpen(0, 1, 4));
  EXPECT_NE(d.Sent<LaneBusy>(), nullptr);
  d.Do(d.MakeOpen(0, 1, 5));
  EXPECT_NE(d.Sent<LaneBound>(), nullptr);
}

TEST(Handoff, ACancelThatOvertakesTheNextTicketOrComesAfterItTakesNoPlaceAway) {
  for (const bool asks_again : {true, false}) {
    HandoffDriver d;
    d.FillSlots();
    d.Reserve(ThirdAgain(d)), d.Do(d.MakeOpen(0, 1, 5));
    d.Do(d.MakeOpen(0, 1, 3));  // a late one
    d.Cancel(3, asks_again);    // of ticket 3, when ticket 5 has asked
    d.GiveRoom();
    d.Do(d.MakeOpen(0, 1, 4));
    EXPECT_NE(d.Sent<LaneBusy>(), nullptr);
    d.Do(d.MakeOpen(0, 1, 5));
    EXPECT_NE(d.Sent<LaneBound>(), nullptr);
  }
}

TEST(Handoff, ARequestThatLeavesForGoodKeepsNobodyWaiting) {
  HandoffDriver d;
  d.FillSlots();
  d.Cancel(3);
  d.GiveRoom();
  d.Do(d.MakeOpen(0, 1, 4));
  EXPECT_NE(d.Sent<LaneBound>(), nullptr);
}

TEST(Handoff, APlaceThatWasLeftIsForgottenInTheEnd) {
  HandoffDriver d;
  d.expiry = seconds(1000);
  d.FillSlots();
  d.Cancel(3, /*asks_again=*/true);
  d.Listen(seconds(60));
  d.Do(d.MakeOpen(0, 1, 4)), d.Reserve(ThirdAgain(d)), d.Do(d.MakeOpen(0, 1, 5));
  d.GiveRoom();
  d.Do(d.MakeOpen(0, 1, 5));
  EXPECT_NE(d.Sent<LaneBusy>(), nullptr) << "a new place, behind ticket 4";
  d.Do(d.MakeOpen(0, 1, 4));
  EXPECT_NE(d.Sent<LaneBound>(), nullptr);
}

TEST(Handoff, ATicketTakesAtMostHalfOfTheRing) {
  for (const auto& [ring, granted] : {std::pair{4, 1u}, {8, 2u}, {11, 2u}, {12, 3u}, {100, 3u}}) {
    HandoffOptions options = SmallOptions();
    options.ring_slots = {ring}, options.slots_per_lane = 3;
    HandoffDriver d(options);
    d.Reserve();
    d.Do(d.MakeOpen(0));
    EXPECT_EQ(d.Sent<LaneBound>()->grants.size(), granted) << ring;
  }
  HandoffDriver never;
  never.lanes.assign(3, {0, 1});
  never.Reserve();
  never.Do(never.MakeOpen(0));
  EXPECT_EQ(never.Sent<LaneGone>()->reason, "the lanes to rank 0 need 6 landing slots, its ring has 4");
}

TEST(Handoff, RefusesAnotherPlanWithBothDigests) {
  HandoffDriver d;
  d.Reserve();
  Opened open = d.MakeOpen(0);
  open.message.plan_digest = 0xabc;
  d.Do(open);
  EXPECT_EQ(d.Sent<LaneGone>()->reason, "the transfer plan differs from this worker's");
}

TEST(Handoff, AttachThatOvertakesTheDataWaitsForTheLastLane) {
  HandoffDriver d;
  d.Reserve(), d.Bind();
  d.Do(d.MakeAttach(5)), d.Do(d.MakeAttach(6));
  EXPECT_TRUE(d.actions.empty());
  d.Complete();
  ASSERT_NE(d.Find<StartSequence>(), nullptr);
  EXPECT_EQ(d.Find<StartSequence>()->attach_gen, 6u);
  EXPECT_EQ(d.Find<StartSequence>()->position, 60u);
}

TEST(Handoff, SecondAttachFencesTheFirstAndCarriesItsPosition) {
  HandoffDriver d;
  d.Reserve(), d.Bind(), d.Complete();
  d.Do(d.MakeAttach(5)), d.Do(d.MakeAttach(7));
  EXPECT_EQ(d.Find<ContinueSequence>()->position, 70u);
  d.Do(d.MakeAttach(6));
  EXPECT_NE(d.Find<AttachRefused>(), nullptr);
}

TEST(Handoff, ARepeatedSlotFullMintsNoCreditAndHearsTheSameVerdict) {
  HandoffDriver d;
  d.Reserve(), d.Bind();
  const SlotTurn slot = d.Grant(0);
  d.Fill(0, /*digest_ok=*/false);
  EXPECT_FALSE(d.Sent<SlotFree>()->ok);
  const SlotTurn granted = d.Sent<SlotFree>()->grant;
  EXPECT_EQ(granted, (SlotTurn{slot.slot, slot.turn + 1}));
  d.Do(d.MakeFilled(0, slot));
  ASSERT_NE(d.Sent<SlotFree>(), nullptr);
  EXPECT_FALSE(d.Sent<SlotFree>()->ok);
  EXPECT_EQ(d.Sent<SlotFree>()->grant, granted);
}

TEST(Handoff, ASegmentInPlaceIsNeverWrittenAgain) {
  HandoffDriver d;
  d.lanes = {{0, 2}};
  d.Reserve(), d.Bind();
  d.Fill(0);  // segment 0
  d.Do(d.MakeFilled(0, d.Grant(0)));
  EXPECT_EQ(d.Find<ScatterSlot>(), nullptr) << "with nothing to place there is no pass: it is answered at once";
  ASSERT_NE(d.Sent<SlotFree>(), nullptr);
  EXPECT_TRUE(d.Sent<SlotFree>()->ok);
  Filled both = d.MakeFilled(0, d.Grant(0));
  both.message.segments = {0, 1};
  d.Do(both);
  EXPECT_THAT(d.Find<ScatterSlot>()->segments, ::testing::ElementsAre(0, 1));
  EXPECT_THAT(d.Find<ScatterSlot>()->wanted, ::testing::ElementsAre(1));
}

TEST(Handoff, TwoBadResendsOfASegmentFailTheEpochAndTheNextOneIsFresh) {
  HandoffDriver d;
  d.Reserve(), d.Bind();
  for (int i = 0; i < 3; ++i) d.Fill(0, /*digest_ok=*/false);
  EXPECT_EQ(d.state(), TicketState::kRepair);
  EXPECT_EQ(d.core.Stats().quarantined_slots, 2);
  d.writer = 8;
  d.Do(d.MakeOpen(0, 2)), d.Do(d.MakeOpen(1, 2));
  for (uint32_t lane : {0u, 1u}) EXPECT_GE(d.Grant(lane, 2).slot, 2u) << "slots 0 and 1 may still be written";
  d.Complete(2);
  EXPECT_EQ(d.state(), TicketState::kReady);
  d.Do(WriterFenced{7});
  EXPECT_EQ(d.core.Stats().quarantined_slots, 0);
  EXPECT_EQ(d.state(), TicketState::kReady);
}

TEST(Handoff, LostKvIsRecomputedHereOnceTheRouterHasAttached) {
  HandoffDriver d;
  d.Reserve(), d.Bind();
  d.Do(d.MakeAttach(5));
  d.Do(WriterLost{7});
  ASSERT_NE(d.Find<StartSequence>(), nullptr);
  EXPECT_TRUE(d.Find<StartSequence>()->recompute);
  EXPECT_EQ(d.blocks.bound, 0);
  EXPECT_NE(d.Find<CutWriter>(), nullptr);
}

TEST(Handoff, AWriterThatIsToBeCutOffOpensNoLaneUntilItIs) {
  HandoffDriver d;
  d.Reserve(1), d.Reserve(2), d.Bind();
  d.Do(WriterLost{7});
  ASSERT_NE(d.Find<CutWriter>(), nullptr);
  d.Do(d.MakeOpen(0, 1, 2));
  ASSERT_NE(d.Sent<LaneGone>(), nullptr);
  EXPECT_EQ(d.Sent<LaneGone>()->reason, "this writer was cut off");
  d.Do(WriterFenced{7}), d.Do(d.MakeOpen(0, 1, 2));
  EXPECT_NE(d.Sent<LaneBound>(), nullptr);
}

TEST(Handoff, LostKvOfAsManyTokensAsMayBeComputedHereIsComputedHere) {
  HandoffOptions options = SmallOptions();
  options.max_recompute_tokens = 100;
  HandoffDriver d(options);
  d.Reserve(), d.Bind();
  d.Do(d.MakeAttach(5)), d.Do(WriterLost{7});
  ASSERT_NE(d.Find<StartSequence>(), nullptr) << "its ticket is for 100 tokens";
  EXPECT_TRUE(d.Find<StartSequence>()->recompute);
}

TEST(Handoff, LostKvTooLongToRecomputeIsAskedForAgain) {
  HandoffOptions options = SmallOptions();
  options.max_recompute_tokens = 99;
  HandoffDriver d(options);
  d.Reserve(), d.Bind();
  d.Do(d.MakeAttach(5)), d.Do(WriterLost{7});
  ASSERT_NE(d.Find<AttachRefused>(), nullptr);
  EXPECT_TRUE(d.Find<AttachRefused>()->prefill_again);
  EXPECT_EQ(d.state(), TicketState::kRepair);
}

TEST(Handoff, ATimeoutReleasesBlocksButNeverSlots) {
  HandoffDriver d;
  d.Reserve(), d.Bind();
  d.StandStill(seconds(11));
  EXPECT_EQ(d.blocks.bound, 0);
  EXPECT_EQ(d.core.Stats().quarantined_slots, 2);
  d.Listen(seconds(2));
  EXPECT_EQ(d.Find<CutWriter>(), nullptr);
  d.Listen(seconds(1));
  ASSERT_NE(d.Find<CutWriter>(), nullptr);
  EXPECT_EQ(d.core.Stats().quarantined_slots, 2) << "asking is no fence";
  d.Do(WriterFenced{7});
  EXPECT_EQ(d.core.Stats().free_slots, 4);
  EXPECT_EQ(d.state(), TicketState::kGone);
}

TEST(Handoff, WhereTheReceiverWritesTheCheckOnReceiptIsTheFence) {
  HandoffDriver d;
  d.fence = FenceKind::kReceiverWrites;
  d.Reserve(), d.Bind();
  const SlotTurn slot = d.Grant(0);
  EXPECT_TRUE(d.core.MayLand(7, {1, 1, 0}, slot));
  EXPECT_FALSE(d.core.MayLand(8, {1, 1, 0}, slot));
  EXPECT_FALSE(d.core.MayLand(7, {1, 1, 0}, {slot.slot, slot.turn + 1}));
  d.Cancel(1);
  EXPECT_FALSE(d.core.MayLand(7, {1, 1, 0}, slot));
  EXPECT_EQ(d.core.Stats().free_slots, 4);
}

TEST(Handoff, BlocksOfAClosingTicketWaitForOurOwnPass) {
  HandoffDriver d;
  d.Reserve(), d.Bind();
  const SlotTurn slot = d.Grant(0);
  d.Do(d.MakeFilled(0, slot));
  d.Cancel(1), d.Do(WriterFenced{7});
  EXPECT_EQ(d.blocks.bound, 1);
  EXPECT_EQ(d.core.Stats().free_slots, 3);
  d.Do(Scattered{{1, 1, 0}, slot, true});
  EXPECT_EQ(d.blocks.bound, 0);
  EXPECT_EQ(d.core.Stats().free_slots, 4);
}

TEST(Handoff, ALaneClosedBeforeItWasBoundCanNeverBeOpened) {
  HandoffDriver d;
  d.Reserve();
  d.Do(d.MakeClosed(0));
  d.Do(d.MakeOpen(1));
  EXPECT_EQ(d.Sent<LaneGone>()->reason, "epoch 1 is closed");
  d.Do(d.MakeOpen(1, 2));
  EXPECT_NE(d.Sent<LaneBound>(), nullptr);
}

TEST(Handoff, ALaneClosedWhileItsOpenWaitsForRoomCanNeverBeOpened) {
  HandoffDriver d;
  d.Reserve();
  d.blocks.room = false;
  d.Do(d.MakeOpen(0));
  ASSERT_NE(d.Sent<LaneBusy>(), nullptr);
  d.Do(d.MakeClosed(0));
  d.blocks.room = true;
  d.Do(d.MakeOpen(0));
  ASSERT_NE(d.Sent<LaneGone>(), nullptr);
  EXPECT_EQ(d.Sent<LaneGone>()->reason, "epoch 1 is closed");
}

TEST(Handoff, NobodyClosesTheLaneOfAnotherWriter) {
  HandoffDriver d;
  d.Reserve();
  d.Bind();
  Closed foreign = d.MakeClosed(0);
  foreign.writer = d.writer + 1;
  d.Do(foreign);
  EXPECT_NE(d.Sent<LaneClosedAck>(), nullptr) << "it is answered all the same";
  EXPECT_EQ(d.state(), TicketState::kReceiving);
  EXPECT_EQ(d.core.ring(0).SlotsOf({1, 1, 0}, LandingRing::Phase::kGranted).size(), 1u) << "the writer may still write";
  d.Complete();
  EXPECT_EQ(d.state(), TicketState::kReady);
}

TEST(Handoff, AWriterThatHoldsTooMuchQuarantineIsRefusedAndNobodyElse) {
  HandoffOptions options = SmallOptions();
  options.max_quarantined_slots = 1;
  HandoffDriver d(options);
  for (int t : {1, 2}) d.Reserve(t);
  d.Bind(1, 1);
  d.Cancel(1);
  d.Do(d.MakeOpen(0, 1, 2));
  EXPECT_NE(d.Sent<LaneBusy>(), nullptr);
  d.writer = 8;
  d.Do(d.MakeOpen(0, 1, 2));
  EXPECT_NE(d.Sent<LaneBound>(), nullptr);
}

TEST(Handoff, ATenantWhoseWritersAreLateToCloseIsRefusedAndNobodyElse) {
  HandoffOptions options = SmallOptions();
  options.max_quarantined_slots = 1;
  HandoffDriver d(options);
  for (int t : {1, 2}) d.Reserve(t);
  d.Bind(1, 1);
  d.Cancel(1);
  EXPECT_TRUE(d.Reserve(3).status.ok()) << "its lanes may close at any moment";
  d.Listen(options.cut_after);
  EXPECT_THAT(Message(d.Reserve(4).status),
              HasSubstr("2 landing slots of tenant 'tenant' are overdue in quarantine, limit 1"));
  for (const char* other : {"other", ""}) {
    ReserveOrder order = d.MakeReserve(*other == 0 ? 5 : 6);
    order.salt = other;
    EXPECT_TRUE(d.Reserve(order).status.ok()) << other;
  }
}

TEST(Handoff, RequestsWithoutASaltAreNoTenant) {
  HandoffOptions options = SmallOptions();
  options.max_quarantined_slots = 1;
  HandoffDriver d(options);
  const auto unsalted = [&d](int ticket) {
    ReserveOrder order = d.MakeReserve(ticket);
    order.salt = "";
    return order;
  };
  d.Reserve(unsalted(1)), d.Bind(1, 1);
  d.Cancel(1);
  d.Listen(options.cut_after);
  EXPECT_TRUE(d.Reserve(unsalted(2)).status.ok()) << "the overdue lanes may be anybody's";
}

TEST(Handoff, ShortMemoryShedsTheYoungestUnboundPin) {
  HandoffDriver d;
  for (int t : {1, 2, 3}) d.Reserve(t);
  d.Bind(1, 3);
  d.Do(ShedUnbound{});
  EXPECT_EQ(d.Find<ReservationShed>()->ticket, 2u);
  d.Do(ShedUnbound{}), d.Do(ShedUnbound{});
  EXPECT_EQ(d.Find<ReservationShed>(), nullptr) << "ticket 3 is bound";
  d.Do(d.MakeOpen(0, 1, 2));
  ASSERT_NE(d.Sent<LaneGone>(), nullptr) << "what was pinned would be missing";
  EXPECT_EQ(d.Sent<LaneGone>()->reason, "given up unbound: KV memory is short");
  d.Do(d.MakeAttach(1, 0, 2));
  EXPECT_TRUE(d.Find<StartSequence>()->recompute);
}

TEST(Handoff, AReservationThatPinsNothingIsNotShed) {
  HandoffDriver d;
  d.blocks.cached = 0;
  d.Reserve(1);
  d.Do(ShedUnbound{});
  EXPECT_EQ(d.Find<ReservationShed>(), nullptr);
}

}  // namespace
}  // namespace baton::decode
