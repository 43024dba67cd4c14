#include "router/request/stage_clock.h"

#include <gtest/gtest.h>

namespace baton::router {
namespace {

TimePoint At(int ms) { return TimePoint{} + std::chrono::milliseconds(1000 + ms); }

double ToFirst(const StageTimings& s) {
  return s.router_ms + s.lost_ms + s.reserve_ms + s.queue_prefill_ms + s.prefill_ms + s.network_ms;
}

TEST(StageClock, OneWorkersStagesAddUpToTheFirstToken) {
  StageClock clock(At(0));
  clock.Ordered(1, At(3));
  clock.Attached(At(3));
  clock.FirstToken(At(40));
  clock.Told({.queue_prefill_ms = 10, .prefill_ms = 25, .decode_ms = 500});
  const StageTimings s = clock.Stages();
  EXPECT_EQ(s.router_ms, 3);
  EXPECT_EQ(s.network_ms, 2);
  EXPECT_EQ(s.lost_ms + s.reserve_ms, 0);
  EXPECT_EQ(s.decode_ms, 500);
  EXPECT_EQ(ToFirst(s), 40);
}

TEST(StageClock, APairsStagesAddUpAndWhatDecodeDoesLaterIsNotInThem) {
  StageClock clock(At(0));
  clock.Ordered(1, At(2));
  clock.Reserved(At(7));
  clock.Prefilled({.queue_prefill_ms = 4, .prefill_ms = 30});
  clock.FirstToken(At(44));
  clock.Attached(At(44));
  clock.Told({.transfer_ms = 6, .queue_decode_ms = 1, .first_decode_ms = 2, .decode_ms = 90});
  const StageTimings s = clock.Stages();
  EXPECT_EQ(s.reserve_ms, 5);
  EXPECT_EQ(s.network_ms, 44 - 2 - 5 - 4 - 30);
  EXPECT_EQ(s.prefill_ms, 30) << "the attached leg computed nothing of the prompt: the sum keeps the prefill leg's";
  EXPECT_EQ(s.transfer_ms, 6);
  EXPECT_EQ(ToFirst(s), 44);
}

TEST(StageClock, APromptThatIsComputedAgainWasQueuedAndComputedTwice) {
  StageClock clock(At(0));
  clock.Ordered(1, At(2));
  clock.Prefilled({.queue_prefill_ms = 4, .prefill_ms = 30});
  clock.FirstToken(At(44));
  clock.Told({.queue_prefill_ms = 5, .prefill_ms = 20, .decode_ms = 90});
  const StageTimings s = clock.Stages();
  EXPECT_EQ(s.queue_prefill_ms, 9);
  EXPECT_EQ(s.prefill_ms, 50);
}

TEST(StageClock, WhatDecodeDoesBeforeAnAnswerThatComesWholeIsNotTheNetworks) {
  StageClock clock(At(0), /*whole=*/true);
  clock.Ordered(1, At(2));
  clock.Reserved(At(7));
  clock.Prefilled({.queue_prefill_ms = 4, .prefill_ms = 30});
  clock.Attached(At(44));
  clock.Told({.transfer_ms = 6, .queue_decode_ms = 1, .first_decode_ms = 2, .decode_ms = 90});
  clock.FirstToken(At(150));
  const StageTimings s = clock.Stages();
  EXPECT_EQ(s.network_ms, 150 - 2 - 5 - 4 - 30 - 6 - 1 - 90);
  EXPECT_EQ(s.decode_ms, 90);
}

TEST(StageClock, TimeOnAWorkerThatWasLostBeforeTheFirstTokenIsLost) {
  StageClock clock(At(0));
  clock.Ordered(1, At(1));
  clock.Reserved(At(6));
  clock.Ordered(2, At(101));
  clock.FirstToken(At(130));
  clock.Told({.prefill_ms = 20});
  const StageTimings s = clock.Stages();
  EXPECT_EQ(s.router_ms, 1);
  EXPECT_EQ(s.lost_ms, 100);
  EXPECT_EQ(s.reserve_ms, 0) << "the attempt that answered reserved nothing";
  EXPECT_EQ(ToFirst(s), 130);
}

TEST(StageClock, TheStagesOfAWorkerThatWasLostAfterTheFirstTokenAreLostWithIt) {
  StageClock clock(At(0));
  clock.Ordered(1, At(1));
  clock.Reserved(At(4));
  clock.FirstToken(At(50));
  clock.FirstToken(At(70));
  clock.Ordered(2, At(900));
  clock.Told({.queue_prefill_ms = 3, .prefill_ms = 60, .decode_ms = 10});
  const StageTimings s = clock.Stages();
  EXPECT_EQ(s.router_ms + s.lost_ms + s.reserve_ms, 50);
  EXPECT_EQ(s.network_ms, 0);
  EXPECT_EQ(s.prefill_ms, 60) << "of the leg that ended the answer";
}

TEST(StageClock, AnOrderThatContinuesAnAttemptBeginsNone) {
  StageClock clock(At(0));
  clock.Ordered(1, At(1));
  clock.Ordered(1, At(30));
  clock.FirstToken(At(31));
  EXPECT_EQ(clock.Stages().lost_ms, 0);
  EXPECT_EQ(clock.Stages().network_ms, 30);
}

TEST(StageClock, WorkersThatSayMoreThanTheRouterSawLeaveNothingForTheNetwork) {
  StageClock clock(At(0));
  clock.Ordered(1, At(1));
  clock.FirstToken(At(10));
  clock.Told({.prefill_ms = 9.5});
  EXPECT_EQ(clock.Stages().network_ms, 0);
}

TEST(StageClock, WithoutATokenThereIsNothingOfTheRouter) {
  StageClock clock(At(0));
  clock.Ordered(1, At(1));
  EXPECT_EQ(clock.Stages().router_ms, 0);
}

}  // namespace
}  // namespace baton::router
