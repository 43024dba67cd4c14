// One prefill worker among others: its share of the landing ring, and what becomes of the ring when it is frozen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "handoff_driver.h"

namespace baton::decode {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Tickets of two lanes with a slot each, in a ring of `slots`.
struct Ring : HandoffDriver {
  Ring(int slots, int tickets, FenceKind how = FenceKind::kPeerExit) : HandoffDriver(Options(slots)) {
    fence = how, expiry = seconds(1000);
    for (int t = 1; t <= tickets; ++t) Reserve(t);
  }
  static HandoffOptions Options(int slots) {
    HandoffOptions options = SmallOptions();
    options.ring_slots = {slots}, options.max_quarantined_slots = slots / 2, options.max_reserved_tokens = 100000;
    return options;
  }
};

/// Whether this writer's Opens bind the ticket.
bool Bound(HandoffDriver& d, WriterId writer, TicketId ticket) {
  d.writer = writer;
  d.Do(d.MakeOpen(1, 1, ticket)), d.Do(d.MakeOpen(0, 1, ticket));
  EXPECT_TRUE(d.Sent<LaneBound>() != nullptr || d.Sent<LaneBusy>() != nullptr);
  return d.Sent<LaneBound>() != nullptr;
}

void CloseLanes(HandoffDriver& d, WriterId writer, TicketId ticket) {
  d.writer = writer;
  d.Cancel(static_cast<int>(ticket));
  for (uint32_t lane : {0u, 1u}) d.Do(d.MakeClosed(lane, true, 1, ticket));
}

TEST(RingShare, AloneAProcessMayHaveTheWholeRing) {
  Ring d(8, 5);
  for (TicketId t : {1, 2, 3, 4}) EXPECT_TRUE(Bound(d, 7, t));
  EXPECT_FALSE(Bound(d, 7, 5));
}

TEST(RingShare, WhileOthersWaitItHasHalf) {
  Ring d(8, 8);
  for (TicketId t : {1, 2, 3, 4}) EXPECT_TRUE(Bound(d, 7, t));
  EXPECT_FALSE(Bound(d, 7, 5)) << "no slot is free";
  EXPECT_FALSE(Bound(d, 8, 6)) << "no slot is free";
  CloseLanes(d, 7, 1);
  EXPECT_FALSE(Bound(d, 7, 5)) << "it came first, and its process holds more than half";
  EXPECT_TRUE(Bound(d, 8, 6)) << "nobody waits for who must stand aside";
  EXPECT_FALSE(Bound(d, 8, 7));
  for (TicketId t : {2, 3}) CloseLanes(d, 7, t);
  EXPECT_TRUE(Bound(d, 7, 5)) << "it has its place again, and less than half";
  EXPECT_TRUE(Bound(d, 8, 7));
}

TEST(RingShare, AShareBelongsToAProcessAndNotToAConnection) {
  Ring d(8, 8);
  d.process = "p";
  for (TicketId t : {1, 2}) EXPECT_TRUE(Bound(d, 7, t));
  for (TicketId t : {3, 4}) EXPECT_TRUE(Bound(d, 9, t));
  d.process = "other";
  EXPECT_FALSE(Bound(d, 8, 6));
  CloseLanes(d, 7, 1);
  d.process = "p";
  EXPECT_FALSE(Bound(d, 10, 5)) << "by a third connection";
  d.process = "other";
  EXPECT_TRUE(Bound(d, 8, 6));
}

TEST(RingShare, AProcessThatDoesNotAskAgainHoldsNobodyToAShare) {
  Ring d(8, 8);
  for (TicketId t : {1, 2, 3, 4}) EXPECT_TRUE(Bound(d, 7, t));
  EXPECT_FALSE(Bound(d, 8, 6));
  CloseLanes(d, 7, 1);
  EXPECT_FALSE(Bound(d, 7, 5));
  d.Listen(seconds(1));
  EXPECT_TRUE(Bound(d, 7, 5));
}

TEST(RingShare, TheCapOnQuarantineIsTheProcesss) {
  Ring d(8, 8);
  d.process = "p";
  for (TicketId t : {1, 2}) EXPECT_TRUE(Bound(d, 7, t));
  d.Do(WriterLost{7}), d.Cancel(1), d.Cancel(2);
  EXPECT_TRUE(Bound(d, 9, 3)) << "the same process by another connection: 4 slots in quarantine, limit 4";
  d.Do(WriterLost{9}), d.Cancel(3);
  EXPECT_FALSE(Bound(d, 10, 4));
  d.process = "other";
  EXPECT_TRUE(Bound(d, 8, 5)) << "nobody waits for it";
  d.process = "p";
  d.Do(WriterFenced{7});
  EXPECT_TRUE(Bound(d, 10, 4));
}

// ---- frozen for ever

/// Writer 7 holds the whole ring of 4 in memory 1 and is heard of no more; tickets 1 and 2 are over.
struct Frozen : Ring {
  Frozen() : Ring(4, 9) {
    memory = 1;
    for (int t : {1, 2}) EXPECT_TRUE(Bound(*this, 7, static_cast<TicketId>(t)));
    for (int t : {1, 2}) Cancel(t);
  }
};

TEST(FrozenWriter, ItsSlotsAreWrittenOffAndItsMemoryIsReplaced) {
  Frozen d;
  d.Listen(milliseconds(4900));
  EXPECT_EQ(d.core.Stats().quarantined_slots, 4);
  EXPECT_EQ(d.Find<ReplaceMemory>(), nullptr);
  d.Listen(milliseconds(100));
  ASSERT_NE(d.Find<ReplaceMemory>(), nullptr);
  EXPECT_EQ(d.Find<ReplaceMemory>()->memory, 1u);
  EXPECT_EQ(d.Find<CutWriter>(), nullptr) << "it is no fence";
  EXPECT_EQ(d.core.Stats().free_slots, 4);
  EXPECT_EQ(d.core.Stats().quarantined_slots, 0);
  EXPECT_EQ(d.core.Stats().memories_written_off, 1);
  EXPECT_EQ(d.state(1), TicketState::kGone);
}

TEST(FrozenWriter, AWriterIsNotJudgedByTimeInWhichTheListenerStoodStill) {
  Frozen d;
  d.now += seconds(60), d.Do(Tick{});
  EXPECT_EQ(d.Find<ReplaceMemory>(), nullptr);
}

TEST(FrozenWriter, OneThatSpeaksIsNotFrozen) {
  Frozen d;
  for (int i = 0; i < 20; ++i) {
    d.Listen(seconds(1));
    EXPECT_EQ(d.Find<ReplaceMemory>(), nullptr);
    d.Do(d.MakeDone(0));
  }
}

TEST(FrozenWriter, OneWhosePromptTakesLongSaysThatItIsThere) {
  Ring d(4, 1);
  EXPECT_TRUE(Bound(d, 7, 1));
  for (int i = 0; i < 60; ++i) {
    d.Listen(seconds(1));
    EXPECT_EQ(d.Find<ReplaceMemory>(), nullptr);
    EXPECT_TRUE(Bound(d, 7, 1)) << "its Open once more";
  }
  EXPECT_EQ(d.core.Stats().granted_slots, 2);
}

TEST(FrozenWriter, NobodyNeedsToGiveItsTicketUpFirst) {
  Ring d(4, 2);
  d.memory = 1;
  for (TicketId t : {1, 2}) EXPECT_TRUE(Bound(d, 7, t));
  d.Listen(seconds(5));
  EXPECT_NE(d.Find<ReplaceMemory>(), nullptr);
  EXPECT_EQ(d.core.Stats().free_slots, 4);
  EXPECT_EQ(d.state(1), TicketState::kRepair) << "another prefill worker may fill it";
  d.writer = 8, d.memory = 2;
  for (uint32_t lane : {0u, 1u}) d.Do(d.MakeOpen(lane, 2, 1));
  d.Complete(2, 1);
  EXPECT_EQ(d.state(1), TicketState::kReady);
}

TEST(FrozenWriter, OthersAreBoundInTheFreshMemoryAndNobodyInTheOld) {
  Frozen d;
  d.Listen(seconds(5));
  EXPECT_FALSE(Bound(d, 8, 3));
  EXPECT_TRUE(d.Sent<LaneBusy>()->elsewhere) << "a ticket that names the old memory";
  d.memory = 2;
  EXPECT_TRUE(Bound(d, 9, 4)) << "who cannot be bound in the old memory holds nobody up";
  EXPECT_TRUE(Bound(d, 9, 5));
  d.Complete(1, 4);
  EXPECT_EQ(d.state(4), TicketState::kReady);
}

TEST(FrozenWriter, HealthyLanesEndInTheOldMemory) {
  Ring d(8, 9);
  d.memory = 1;
  EXPECT_TRUE(Bound(d, 7, 1) && Bound(d, 8, 2));
  d.Cancel(1);
  d.Listen(seconds(3));
  EXPECT_TRUE(Bound(d, 8, 2)) << "it says that it is there";
  d.Listen(seconds(2));
  EXPECT_NE(d.Find<ReplaceMemory>(), nullptr);
  d.Complete(1, 2);
  EXPECT_EQ(d.state(2), TicketState::kReady);
  EXPECT_TRUE(Bound(d, 8, 3)) << "what is left of the old memory is used";
  for (uint32_t lane : {0u, 1u}) EXPECT_GE(d.Grant(lane, 1, 3).slot, 2u);
}

TEST(FrozenWriter, AResumedOneClosesItsLanesAndTheMemoryIsDropped) {
  Frozen d;
  d.Listen(seconds(5));
  EXPECT_EQ(d.core.ring(0).lost(1), 4);
  d.Listen(seconds(100));
  EXPECT_EQ(d.Find<DropMemory>(), nullptr);
  d.writer = 7;
  d.Do(d.MakeFilled(0, {0, 1}));
  EXPECT_NE(d.Sent<LaneGone>(), nullptr);
  d.Do(d.MakeClosed(0, /*flushed=*/false));
  EXPECT_EQ(d.core.ring(0).lost(1), 4) << "no fence";
  for (TicketId t : {1, 2}) {
    for (uint32_t lane : {0u, 1u}) d.Do(d.MakeClosed(lane, true, 1, t));
  }
  EXPECT_EQ(d.core.ring(0).lost(1), 0);
  d.Do(Tick{});
  ASSERT_NE(d.Find<DropMemory>(), nullptr);
  EXPECT_EQ(d.Find<DropMemory>()->memory, 1u);
  d.Do(d.MakeOpen(0, 1, 3));
  EXPECT_EQ(d.Sent<LaneGone>()->reason, "the landing memory that it writes was replaced");
}

TEST(FrozenWriter, ItsExitGivesTheMemoryBackToo) {
  Frozen d;
  d.Listen(seconds(5));
  d.Do(WriterFenced{7});
  EXPECT_EQ(d.core.ring(0).lost(1), 0);
  EXPECT_TRUE(Bound(d, 8, 3)) << "until it is dropped";
  d.Listen(seconds(61));
  EXPECT_EQ(d.Find<DropMemory>(), nullptr) << "a lane is open in it";
  for (uint32_t lane : {0u, 1u}) d.writer = 8, d.Do(d.MakeClosed(lane, true, 1, 3));
  d.Do(Tick{});
  EXPECT_NE(d.Find<DropMemory>(), nullptr);
}

TEST(FrozenWriter, AMemoryIsDroppedAfterItsTicketsTimeAndNotWhileSomebodyWritesInIt) {
  Frozen d;
  d.Listen(seconds(5));
  d.Do(WriterFenced{7});
  for (int i = 0; i < 59; ++i) {
    d.Listen(seconds(1));
    ASSERT_EQ(d.Find<DropMemory>(), nullptr) << "tickets that name it may stand for so long: " << i;
  }
  EXPECT_TRUE(Bound(d, 8, 3));
  for (int i = 0; i < 20; ++i) {
    d.Listen(seconds(1)), d.Do(d.MakeDone(0, 9));  // it is there
    ASSERT_EQ(d.Find<DropMemory>(), nullptr) << "a lane is open in it: " << i;
  }
  for (uint32_t lane : {0u, 1u}) d.Do(d.MakeClosed(lane, true, 1, 3));
  d.Do(Tick{});
  EXPECT_NE(d.Find<DropMemory>(), nullptr);
}

TEST(FrozenWriter, ItsProcessIsBoundAgainOnceItsSlotsAreWrittenOff) {
  Ring d(8, 9);
  d.memory = 1, d.process = "p";
  for (TicketId t : {1, 2, 3}) EXPECT_TRUE(Bound(d, 7, t));
  for (int t : {1, 2, 3}) d.Cancel(t);
  EXPECT_FALSE(Bound(d, 9, 4)) << "6 slots in quarantine, limit 4";
  d.Listen(seconds(5));
  ASSERT_EQ(d.core.Stats().quarantined_slots, 0);
  d.memory = 2;
  EXPECT_TRUE(Bound(d, 9, 4));
}

TEST(FrozenWriter, ASlotThatWeAreReadingIsLostWhenOurPassEnds) {
  Ring d(4, 9);
  d.memory = 1;
  EXPECT_TRUE(Bound(d, 7, 1));
  const SlotTurn slot = d.Grant(0);
  d.Do(d.MakeFilled(0, slot)), d.Cancel(1);
  d.Listen(seconds(5));
  EXPECT_EQ(d.core.ring(0).lost(1), 1);
  EXPECT_EQ(d.state(1), TicketState::kClosing);
  d.Do(Scattered{{1, 1, 0}, slot, true});
  EXPECT_EQ(d.core.ring(0).lost(1), 2);
  EXPECT_EQ(d.state(1), TicketState::kGone);
}

TEST(FrozenWriter, OneThatLostItsConnectionIsWrittenOffToo) {
  Frozen d;
  d.Do(WriterLost{7});
  d.Listen(seconds(5));
  EXPECT_NE(d.Find<ReplaceMemory>(), nullptr);
  EXPECT_EQ(d.core.Stats().free_slots, 4);
}

TEST(FrozenWriter, WhereCuttingOffIsAFenceNothingIsWrittenOff) {
  Ring d(4, 2, FenceKind::kForcedClose);
  EXPECT_TRUE(Bound(d, 7, 1));
  d.Cancel(1);
  d.Listen(seconds(100));
  EXPECT_NE(d.Find<CutWriter>(), nullptr);
  EXPECT_EQ(d.Find<ReplaceMemory>(), nullptr);
  EXPECT_EQ(d.core.Stats().quarantined_slots, 2) << "asking is no fence";
}

// ---- lost, and waited for by nobody

TEST(LostWriter, WhoHasClosedItsLanesIsReleased) {
  Ring d(8, 9);
  d.memory = 1;
  EXPECT_TRUE(Bound(d, 7, 1) && Bound(d, 8, 2));
  CloseLanes(d, 7, 1);
  d.Do(WriterLost{7});
  ASSERT_NE(d.Find<ReleaseWriter>(), nullptr);
  EXPECT_EQ(d.Find<ReleaseWriter>()->writer, 7u);
  d.Do(WriterLost{8});
  EXPECT_EQ(d.Find<ReleaseWriter>(), nullptr) << "its lanes are open";
}

TEST(LostWriter, WhoMayStillWriteASlotIsNot) {
  Frozen d;
  CloseLanes(d, 7, 1);
  d.Do(WriterLost{7});
  EXPECT_EQ(d.Find<ReleaseWriter>(), nullptr) << "the lanes of ticket 2 are open";
  d.Listen(seconds(5));
  EXPECT_EQ(d.core.ring(0).lost(1), 2);
  d.Do(WriterLost{7});
  EXPECT_EQ(d.Find<ReleaseWriter>(), nullptr) << "its slots are written off, not fenced";
  d.Do(WriterFenced{7});
  EXPECT_EQ(d.core.ring(0).lost(1), 0);
}

TEST(LostWriter, ASlotThatWeAreReadingIsNeededToo) {
  Ring d(4, 9);
  d.memory = 1;
  EXPECT_TRUE(Bound(d, 7, 1));
  const SlotTurn slot = d.Grant(0);
  d.Do(d.MakeFilled(0, slot)), d.Do(d.MakeClosed(1)), d.Cancel(1);
  d.Listen(seconds(5));
  EXPECT_EQ(d.core.ring(0).lost(1), 0);
  d.Do(WriterLost{7});
  EXPECT_EQ(d.Find<ReleaseWriter>(), nullptr);
  d.Do(Scattered{{1, 1, 0}, slot, true});
  EXPECT_EQ(d.core.ring(0).lost(1), 1) << "until its fence";
}

TEST(LostWriter, WhoIsSilentAndConnectedIsNot) {
  Ring d(4, 9);
  d.Do(WriterLost{7, /*connected=*/true});
  EXPECT_EQ(d.Find<ReleaseWriter>(), nullptr);
}

}  // namespace
}  // namespace baton::decode
