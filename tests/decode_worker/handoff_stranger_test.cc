// What a peer that was not given a ticket, or whose connection did not open a lane, can do to it: nothing.
#include <gtest/gtest.h>

#include <limits>

#include "tests/decode_worker/handoff_driver.h"

namespace baton::decode {
namespace {

constexpr WriterId kStranger = 9;
constexpr TicketSecret kGuess{1, 2};  // the driver's tickets have another
constexpr uint32_t kLastEpoch = std::numeric_limits<uint32_t>::max();

/// The stranger guesses the ticket's number, but not its secret.
Opened Guessed(const HandoffDriver& d, uint32_t lane, uint32_t epoch, TicketId ticket = 1) {
  Opened open = d.MakeOpen(lane, epoch, ticket);
  open.writer = kStranger, open.process = "stranger", open.message.secret = kGuess;
  return open;
}
Closed GuessedClose(const HandoffDriver& d, uint32_t lane, bool flushed, uint32_t epoch) {
  Closed closed = d.MakeClosed(lane, flushed, epoch);
  closed.writer = kStranger, closed.message.secret = kGuess;
  return closed;
}
/// The ticket's own writer sends everything, and the request runs with its KV.
void ExpectHandedOver(HandoffDriver& d) {
  d.Bind();
  d.Do(d.MakeAttach(1));
  d.Complete();
  const auto* start = d.Find<StartSequence>();
  ASSERT_NE(start, nullptr);
  EXPECT_FALSE(start->recompute);
}

TEST(HandoffStranger, OpensNoTicketWhoseNumberHeGuessed) {
  for (const uint32_t epoch : {1u, 2u, kLastEpoch}) {
    HandoffDriver d;
    ASSERT_TRUE(d.Reserve().status.ok());
    d.Do(Guessed(d, 0, epoch));
    ASSERT_NE(d.Sent<LaneGone>(), nullptr);
    EXPECT_EQ(d.Sent<LaneGone>()->reason, "unknown ticket");
    EXPECT_EQ(d.blocks.bound, 0);
    EXPECT_EQ(d.core.Find(1)->epoch, 0u);
    ExpectHandedOver(d);
  }
}

TEST(HandoffStranger, HearsTheSameOfEveryTicket) {
  HandoffDriver d;
  d.Reserve(1), d.Reserve(2);
  d.Cancel(2);
  d.Bind();
  for (const TicketId ticket : {1, 2, 3}) {
    Opened open = Guessed(d, 0, 1, ticket);
    open.message.plan_digest = 43;
    d.Do(open);
    EXPECT_EQ(d.Sent<LaneGone>()->reason, "unknown ticket") << ticket;
  }
}

TEST(HandoffStranger, ReplacesNoEpochThatIsUnderWay) {
  HandoffDriver d;
  d.Reserve();
  d.Bind();
  d.Do(d.MakeAttach(1));
  d.Do(Guessed(d, 0, kLastEpoch));
  d.Complete();
  EXPECT_NE(d.Find<StartSequence>(), nullptr);
}

TEST(HandoffStranger, ShutsNoLaneBeforeItsWriterOpensIt) {
  for (const bool flushed : {true, false}) {
    for (const uint32_t epoch : {1u, kLastEpoch}) {
      HandoffDriver d;
      d.Reserve();
      d.Do(GuessedClose(d, 0, flushed, epoch));
      ExpectHandedOver(d);
    }
  }
}

TEST(HandoffStranger, ShutsNoLaneThatWaitsForItsWriterBesideAnOpenOne) {
  for (const bool flushed : {true, false}) {
    HandoffDriver d;
    d.Reserve();
    d.Do(d.MakeOpen(0));
    d.Do(GuessedClose(d, 1, flushed, 1));
    EXPECT_EQ(d.state(), TicketState::kReceiving);
    ExpectHandedOver(d);
  }
}

TEST(HandoffStranger, NoMessageOfAnotherConnectionMovesALane) {
  HandoffDriver d;
  d.Reserve();
  d.Bind();
  const SlotTurn slot = d.Grant(0);
  d.writer = kStranger;
  EXPECT_FALSE(d.core.MayLand(kStranger, {1, 1, 0}, slot));
  d.Do(d.MakeFilled(0, slot));
  EXPECT_EQ(d.Find<ScatterSlot>(), nullptr);
  d.Do(d.MakeDone(0));
  d.Do(d.MakeClosed(0)), d.Do(d.MakeClosed(1, false));
  d.Do(WriterLost{kStranger}), d.Do(WriterFenced{kStranger});
  EXPECT_EQ(d.state(), TicketState::kReceiving);
  EXPECT_EQ(d.Grant(0), slot);
  d.writer = 7;
  ExpectHandedOver(d);
}

TEST(HandoffStranger, ALaneIsOpenedOnlyByWhoWasGivenTheTicket) {
  HandoffOptions options = SmallOptions();
  options.new_secret = HandoffOptions().new_secret;
  HandoffDriver d(options);
  const TicketSecret secret = d.Reserve(1).secret, other = d.Reserve(2).secret;
  EXPECT_FALSE(secret == other);
  EXPECT_FALSE(secret == TicketSecret{});
  Opened unknown = d.MakeOpen(0, 1, 99);
  d.Do(unknown);
  const std::string nobodys = d.Sent<LaneGone>()->reason;
  const TicketSecret wrong[] = {{}, other, {secret.high, secret.low ^ 1}, {secret.high ^ 1, secret.low}};
  for (const TicketSecret& guess : wrong) {
    Opened open = d.MakeOpen(0);
    open.message.secret = guess;
    d.Do(open);
    ASSERT_NE(d.Sent<LaneGone>(), nullptr);
    EXPECT_EQ(d.Sent<LaneGone>()->reason, nobodys) << "nothing tells that there is such a ticket";
    EXPECT_EQ(d.state(), TicketState::kReserved);
  }
  Opened open = d.MakeOpen(0);
  open.message.secret = secret;
  d.Do(open);
  EXPECT_NE(d.Sent<LaneBound>(), nullptr);
}

TEST(HandoffStranger, AnEpochIsOfTheProcessThatOpenedItFirst) {
  HandoffDriver d;
  d.lanes = {{0, 1}, {0, 1}};
  d.Reserve();
  d.process = "p";
  d.Do(d.MakeOpen(0));
  EXPECT_NE(d.Sent<LaneBound>(), nullptr);
  d.writer = 8, d.process = "q";
  d.Do(d.MakeOpen(1));
  ASSERT_NE(d.Sent<LaneGone>(), nullptr);
  EXPECT_EQ(d.Sent<LaneGone>()->reason, "another prefill worker has opened the epoch");
  d.process = "p";
  d.Do(d.MakeOpen(1));
  EXPECT_NE(d.Sent<LaneBound>(), nullptr) << "another connection of the same process";
}

TEST(HandoffStranger, CancelsThatNobodyAskedForAreNotRememberedWithoutEnd) {
  HandoffOptions options = SmallOptions();
  options.most_tombstones = 6;
  HandoffDriver d(options);
  for (int ticket = 1; ticket <= 5; ++ticket) EXPECT_FALSE(d.Cancel(ticket));
  EXPECT_TRUE(absl::IsCancelled(d.Reserve(3).status));
  EXPECT_TRUE(d.Reserve(4).status.ok()) << "no room for a fourth: it ends with its lease";
}

TEST(HandoffStranger, ARouterThatCancelsWithoutEndLeavesOthersTheirTombstones) {
  HandoffOptions options = SmallOptions();
  options.most_tombstones = 6;
  HandoffDriver d(options);
  for (int i = 0; i < 100; ++i) d.Cancel(1);
  EXPECT_TRUE(absl::IsCancelled(d.Reserve(1).status));
  for (int ticket = 1; ticket <= 20; ++ticket) d.Cancel(ticket);
  ReserveOrder of_another = d.MakeReserve(20);
  of_another.key.router = "another";
  std::vector<Action> actions;
  EXPECT_FALSE(d.core.Cancel(of_another.key, false, d.now, actions));
  EXPECT_TRUE(absl::IsCancelled(d.Reserve(of_another).status));
  d.now += options.tombstone;
  d.core.Handle(Tick{}, d.now, actions);
  EXPECT_TRUE(d.Reserve(of_another).status.ok()) << "its time is over";
}

}  // namespace
}  // namespace baton::decode
