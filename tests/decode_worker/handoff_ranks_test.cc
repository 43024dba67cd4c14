// A ticket whose lanes end in several ranks, each with landing memories and writers of its own.
#include <gtest/gtest.h>

#include "handoff_driver.h"
#include "kvtransfer/rank_numbers.h"

namespace baton::decode {
namespace {

using std::chrono::seconds;

const uint32_t kFirst = FirstMemoryOf(0), kSecond = FirstMemoryOf(1);

/// One lane to each of two ranks, a slot each; a writer for each of them, of one process.
struct TwoRanks : HandoffDriver {
  explicit TwoRanks(FenceKind how, int tickets = 1) : HandoffDriver(Options()) {
    fence = how, expiry = seconds(1000), process = "p", lanes = {{0, 1}, {1, 1}};
    for (int t = 1; t <= tickets; ++t) Reserve(t);
  }
  static HandoffOptions Options() {
    HandoffOptions options = SmallOptions();
    options.ring_slots = {4, 4}, options.max_quarantined_slots = 8, options.max_reserved_tokens = 100000;
    return options;
  }
  void OpenLane(uint32_t lane, uint32_t of_memory, uint64_t peer, uint32_t epoch = 1, TicketId ticket = 1) {
    memory = of_memory, writer = WriterIn(of_memory, peer);
    Do(MakeOpen(lane, epoch, ticket));
  }
  void FillLane(uint32_t lane, int rank, uint32_t of_memory, uint64_t peer) {
    writer = WriterIn(of_memory, peer);
    const SlotTurn slot = core.ring(rank).SlotsOf({1, 1, lane}, LandingRing::Phase::kGranted).at(0);
    Do(MakeFilled(lane, slot)), Do(Scattered{{1, 1, lane}, slot, true}), Do(MakeDone(lane));
  }
};

TEST(HandoffOfRanks, EachRanksWriterComesByAWayOfItsOwnAndAllMustBeDone) {
  TwoRanks d(FenceKind::kReceiverWrites);
  d.OpenLane(0, kFirst + 1, 5);
  ASSERT_NE(d.Sent<LaneBound>(), nullptr);
  d.OpenLane(1, kSecond, 6);
  ASSERT_NE(d.Sent<LaneBound>(), nullptr) << "the first lane's Open has bound both, in another landing memory";
  EXPECT_EQ(d.blocks.bound, 1);
  d.FillLane(0, 0, kFirst + 1, 5);
  EXPECT_EQ(d.state(), TicketState::kReceiving) << "a rank's KV is missing";
  d.FillLane(1, 1, kSecond, 6);
  EXPECT_EQ(d.state(), TicketState::kReady);
}

TEST(HandoffOfRanks, AFenceOfOneRanksWriterIsNoneOfTheOthers) {
  TwoRanks d(FenceKind::kPeerExit);
  d.OpenLane(0, kFirst, 5), d.OpenLane(1, kSecond, 6);
  d.Cancel(1);
  EXPECT_EQ(d.core.Stats().quarantined_slots, 2);
  d.Do(WriterFenced{WriterIn(kFirst, 5)});
  EXPECT_EQ(d.core.Stats().quarantined_slots, 1);
  EXPECT_EQ(d.core.ring(0).free_slots(), 4);
  EXPECT_EQ(d.core.ring(1).free_slots(), 3) << "its writer may still write";
  EXPECT_EQ(d.state(), TicketState::kClosing);
  d.Do(WriterFenced{WriterIn(kSecond, 6)});
  EXPECT_EQ(d.core.ring(1).free_slots(), 4);
  EXPECT_EQ(d.state(), TicketState::kGone);
}

TEST(HandoffOfRanks, OneThatIsLostEndsTheEpochOfAll) {
  TwoRanks d(FenceKind::kReceiverWrites);
  d.OpenLane(0, kFirst, 5), d.OpenLane(1, kSecond, 6);
  d.FillLane(0, 0, kFirst, 5);
  d.Do(WriterLost{WriterIn(kSecond, 6)});
  EXPECT_EQ(d.state(), TicketState::kRepair);
  EXPECT_EQ(d.core.Stats().granted_slots, 0);
  d.OpenLane(0, kFirst, 7, 2), d.OpenLane(1, kSecond, 8, 2);
  EXPECT_NE(d.Sent<LaneBound>(), nullptr) << "another prefill worker's epoch";
}

TEST(HandoffOfRanks, AFrozenWritersMemoryIsReplacedAtItsRankAlone) {
  TwoRanks d(FenceKind::kPeerExit, 3);
  d.OpenLane(0, kFirst, 5), d.OpenLane(1, kSecond, 6);
  d.Cancel(1);
  d.writer = WriterIn(kFirst, 5);
  d.Do(d.MakeClosed(0));
  d.Listen(seconds(5));
  ASSERT_NE(d.Find<ReplaceMemory>(), nullptr);
  EXPECT_EQ(d.Find<ReplaceMemory>()->memory, kSecond);
  EXPECT_EQ(d.core.ring(1).lost(kSecond), 1);
  EXPECT_EQ(d.core.ring(0).lost(kFirst), 0);
}

TEST(HandoffOfRanks, AnUnopenedLaneIsNotOpenedInAMemoryWhereItsSlotsAreLost) {
  TwoRanks d(FenceKind::kPeerExit, 6);
  for (TicketId t = 1; t <= 4; ++t) {  // all slots of rank 1 are lost in its first memory
    d.OpenLane(0, kFirst, 5, 1, t), d.OpenLane(1, kSecond, 6, 1, t);
    d.Cancel(static_cast<int>(t));
    d.writer = WriterIn(kFirst, 5), d.Do(d.MakeClosed(0, true, 1, t));
  }
  d.Listen(seconds(5));
  EXPECT_EQ(d.core.ring(1).lost(kSecond), 4);
  d.OpenLane(0, kFirst, 5, 1, 5);
  ASSERT_NE(d.Sent<LaneBound>(), nullptr);
  d.OpenLane(1, kSecond, 9, 1, 5);
  ASSERT_NE(d.Sent<LaneGone>(), nullptr);
  EXPECT_EQ(d.Sent<LaneGone>()->reason, "the lane's slots are in another landing memory");
  d.OpenLane(1, kSecond + 1, 10, 1, 5);
  EXPECT_NE(d.Sent<LaneBound>(), nullptr) << "in the fresh one they are not";
}

// ---- a rank tells its writer itself

TEST(Handoff, ASlotThatWasToldFreeIsNotToldAgainButToWhoAsksAgain) {
  HandoffDriver d;
  d.Reserve(), d.Bind();
  const SlotTurn slot = d.Grant(0);
  d.Do(d.MakeFilled(0, slot));
  d.Do(Scattered{{1, 1, 0}, slot, true, /*told=*/true});
  EXPECT_EQ(d.Sent<SlotFree>(), nullptr);
  d.Do(d.MakeFilled(0, slot));
  ASSERT_NE(d.Sent<SlotFree>(), nullptr) << "its answer may be lost with a connection";
  EXPECT_TRUE(d.Sent<SlotFree>()->ok);
  EXPECT_EQ(d.Sent<SlotFree>()->grant, (SlotTurn{slot.slot, slot.turn + 1}));
}

TEST(Handoff, APassMayBeReportedLateWhileItsLaneLacksMore) {
  HandoffDriver d;
  d.lanes = {{0, 3}};
  d.Reserve(), d.Bind();
  const auto may_wait = [&d](uint32_t segment) {
    Filled filled = d.MakeFilled(0, d.Grant(0));
    filled.message.segments = {segment};
    d.Do(filled);
    const bool out = d.Find<ScatterSlot>()->may_wait;
    d.Do(Scattered{{1, 1, 0}, filled.message.slot, true});
    return out;
  };
  EXPECT_TRUE(may_wait(0));
  EXPECT_TRUE(may_wait(2));
  EXPECT_FALSE(may_wait(1)) << "all have come";
}

}  // namespace
}  // namespace baton::decode
