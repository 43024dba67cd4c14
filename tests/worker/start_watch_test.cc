// What counts while ranks start is that something moves, not how long it takes.
#include "worker/ranks/start_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "common/rank_loss.h"

namespace baton::worker {
namespace {

using std::chrono::milliseconds;

/// What is said within `patience` several times over, asked as a main thread asks; `step`: what happens meanwhile.
template <class Step>
absl::Status Watched(StartWatch& watch, milliseconds patience, Step step) {
  const SteadyClock clock;
  const TimePoint until = clock.Now() + 4 * patience;
  for (uint64_t round = 0; clock.Now() < until; ++round) {
    if (absl::Status status = watch.Health(step(round)); !status.ok()) return status;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return absl::OkStatus();
}

TEST(StartWatch, AStartInWhichNothingMovesIsLostAndSaysWhereEachRankWas) {
  StartWatch watch(3, milliseconds(100));
  watch.Note(0, "pack", 1);
  watch.Note(2, "pack", 0.434);
  const absl::Status lost =
      Watched(watch, milliseconds(100), [](uint64_t) { return StartWatch::Others{.waits_for = 1}; });
  EXPECT_TRUE(IsRankLoss(lost)) << lost;
  EXPECT_EQ(
      lost.message(),
      "the start has stood still for 100 ms (--rank-start-timeout-ms): rank 0 at pack 100 %, rank 2 at pack 43 %, "
      "rank 1 does not answer");
  EXPECT_EQ(watch.Health({.moved = 7}), lost) << "it stays lost, in the same words";
}

TEST(StartWatch, AStartGoesOnForAsLongAsARankOrAnotherProcessMoves) {
  for (const milliseconds patience : {milliseconds(100), milliseconds(500), milliseconds(2500)}) {  // a busy machine
    StartWatch by_notes(1, patience), by_others(1, patience);
    const bool kept =
        Watched(by_notes, patience,
                [&](uint64_t round) {
                  by_notes.Note(0, "pack", 0.001 * static_cast<double>(round % 1000));
                  return StartWatch::Others{};
                })
            .ok() &&
        Watched(by_others, patience, [](uint64_t round) { return StartWatch::Others{.moved = round}; }).ok();
    if (kept) return;
  }
  FAIL() << "one of them was lost, whatever time it had";
}

TEST(StartWatch, AGroupThatHasStartedMayBeSilent) {
  StartWatch watch(2, milliseconds(20));
  watch.Over();
  EXPECT_TRUE(Watched(watch, milliseconds(20), [](uint64_t) { return StartWatch::Others{}; }).ok());
}

}  // namespace
}  // namespace baton::worker
