// Others' silence is judged in own time, after what has come was heard.
#include <gtest/gtest.h>

#include "handoff_driver.h"

namespace baton::decode {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Handoff, AWorkerThatStoodStillHearsItsRouterBeforeItJudgesIt) {
  HandoffDriver d;
  d.expiry = seconds(120), d.lease = seconds(4);
  d.Reserve(1), d.Reserve(2), d.Bind(1, 2);
  d.Complete(1, 2), d.Do(d.MakeAttach(5, 1, 2));
  d.Listen(milliseconds(500));
  for (int stop = 0; stop < 3; ++stop) {
    d.StandStill(
        seconds(60 / (stop + 1)));  // renewals wait in the socket: other threads of ours bring them a moment later
    d.Listen(milliseconds(300));
    d.Do(Renewed{d.Key(1), 0}), d.Do(Renewed{d.Key(2), 5});
  }
  EXPECT_EQ(d.state(1), TicketState::kReserved);
  EXPECT_EQ(d.state(2), TicketState::kAttached);
  d.Listen(seconds(4));
  EXPECT_EQ(d.state(1), TicketState::kGone) << "nobody renewed it while this side listened";
  EXPECT_NE(d.Find<StopSequence>(), nullptr);
}

TEST(Handoff, AWorkerThatStoodStillCutsNobodyForIt) {
  HandoffDriver d;
  d.Reserve(), d.Bind(), d.Complete();
  d.StandStill(seconds(8));
  EXPECT_EQ(d.Find<CutWriter>(), nullptr) << "Closed may wait in the socket";
  d.Do(d.MakeClosed(0)), d.Do(d.MakeClosed(1));
  d.Listen(milliseconds(1500));
  EXPECT_EQ(d.Find<CutWriter>(), nullptr);
  EXPECT_EQ(d.state(), TicketState::kReady);
}

TEST(Handoff, AParkedAttachWhoseKvDoesNotComeIsComputedThoughItsWriterSpeaksOfOthers) {
  HandoffDriver d;
  d.expiry = seconds(100);
  d.Reserve(1), d.Reserve(2);
  d.Bind(1, 1), d.Bind(1, 2);
  d.Do(d.MakeAttach(5)), d.Do(d.MakeAttach(6, 1, 2));
  d.Listen(seconds(7)), d.Fill(0);
  d.Listen(milliseconds(900));
  EXPECT_EQ(d.Find<StartSequence>(), nullptr);
  d.Listen(milliseconds(100));
  ASSERT_NE(d.Find<StartSequence>(), nullptr) << "nothing came for 8 s";
  EXPECT_EQ(d.Find<StartSequence>()->ticket, 2u);
  EXPECT_TRUE(d.Find<StartSequence>()->recompute);
  EXPECT_NE(d.Sent<LaneGone>(), nullptr) << "its writer hears of it";
  EXPECT_EQ(d.state(1), TicketState::kReceiving) << "a slot of this one came";
  d.Do(d.MakeFilled(1, d.Grant(1)));
  d.Listen(seconds(20));
  EXPECT_EQ(d.state(1), TicketState::kReceiving) << "our own pass takes its time";
}

TEST(Handoff, ASequenceWithoutRouterCreditStopsItself) {
  HandoffDriver d;
  d.lease = seconds(5);
  d.Reserve(), d.Bind(), d.Complete();
  d.Listen(seconds(4)), d.Do(d.MakeAttach(5));  // which renews it
  for (int i = 0; i < 3; ++i) {
    d.Listen(seconds(4)), d.Do(Renewed{d.Key(1), 5});
    EXPECT_EQ(d.state(), TicketState::kAttached) << i;
  }
  EXPECT_EQ(d.Find<StopSequence>(), nullptr);
  d.Listen(seconds(4)), d.Do(Renewed{d.Key(1), 4}), d.Listen(seconds(1));
  EXPECT_NE(d.Find<StopSequence>(), nullptr) << "lease of an older attach_gen counts for nothing";
}

TEST(Handoff, AReservationLivesOnRenewedToo) {
  HandoffDriver d;
  d.expiry = seconds(120), d.lease = seconds(4);
  d.Reserve(1), d.Reserve(2);
  d.lease = {};
  d.Reserve(3);
  d.Bind(1, 2);
  for (int i = 0; i < 5; ++i) d.Listen(seconds(1)), d.Do(Renewed{d.Key(1), 0});
  EXPECT_EQ(d.state(1), TicketState::kReserved) << "renewed";
  EXPECT_EQ(d.state(2), TicketState::kClosing) << "its router is gone";
  EXPECT_EQ(d.state(3), TicketState::kReserved) << "its router renews nothing: it lives until its expiry";
  EXPECT_EQ(d.blocks.bound, 0);
}

// A Reserve without a lease has no end but its expiry, which may be hours away: a flip or a drain waits for all
// tickets.
TEST(Handoff, ATicketThatNobodyAsksForHoldsUpADrainForFourSeconds) {
  HandoffDriver d;
  d.expiry = seconds(3600);
  for (int ticket = 1; ticket <= 5; ++ticket) d.Reserve(ticket);
  d.lease = seconds(3600);
  d.Reserve(6);
  d.Listen(seconds(20));
  EXPECT_EQ(d.state(1), TicketState::kReserved) << "nothing drains";
  d.Bind(1, 2), d.Bind(1, 3), d.Complete(1, 3);
  d.core.Drain();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(d.state(1), TicketState::kReserved) << i;
    EXPECT_EQ(d.state(6), TicketState::kReserved) << i;
    d.Do(d.MakeOpen(0, 1, 2));  // its prefill worker computes
    d.Do(Renewed{d.Key(4), 0});
    d.Listen(seconds(1));
  }
  EXPECT_EQ(d.state(1), TicketState::kGone);
  EXPECT_EQ(d.state(6), TicketState::kGone) << "however long its lease is";
  EXPECT_EQ(d.state(3), TicketState::kClosing) << "complete, and nobody attached";
  EXPECT_EQ(d.state(2), TicketState::kReceiving);
  EXPECT_EQ(d.state(4), TicketState::kReserved) << "renewed";
  d.Do(d.MakeAttach(5, 1, 2)), d.Do(d.MakeAttach(6, 0, 4));
  d.Listen(seconds(4));
  EXPECT_EQ(d.state(2), TicketState::kReceiving) << "an Attach waits for it";
  EXPECT_EQ(d.state(4), TicketState::kAttached) << "it runs, and is waited for";
  EXPECT_EQ(d.Reserve(1).status.message(), "ticket closed: the worker drains, and nobody has asked for it for 4000 ms");
}

TEST(Handoff, AfterADrainThatWasGivenUpTicketsStandUntilTheirExpiry) {
  HandoffDriver d;
  d.expiry = seconds(3600);
  d.Reserve(1);
  d.core.Drain(), d.Listen(seconds(3));
  d.core.Resume(), d.Listen(seconds(60));
  EXPECT_EQ(d.state(1), TicketState::kReserved);
  d.core.Drain(), d.Listen(seconds(3));
  EXPECT_EQ(d.state(1), TicketState::kReserved) << "the four seconds begin with the drain";
  d.Listen(seconds(1));
  EXPECT_EQ(d.state(1), TicketState::kGone);
}

}  // namespace
}  // namespace baton::decode
