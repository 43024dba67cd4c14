// What the ranks of a worker have moved, as one load.
#include "worker/process/rank_load.h"

#include <gtest/gtest.h>

#include <vector>

namespace baton::worker {
namespace {

TEST(RankLoad, FiguresOfAllRanksAddUpButTheTimeInWhichTheyMoveAtOnce) {
  const std::vector<RankFigures> ranks = {{.bytes = 1,
                                           .slots = 2,
                                           .nanoseconds = 3'000'000'000,
                                           .waiting = 4,
                                           .peers_lost = 5,
                                           .refused = 6,
                                           .digest_mismatches = 7,
                                           .unreadable_slots = 8,
                                           .self_tests_failed = 9,
                                           .ways = {{"one", "shm", "host", 10}}},
                                          {.bytes = 100,
                                           .slots = 200,
                                           .nanoseconds = 2'000'000'000,
                                           .waiting = 400,
                                           .peers_lost = 500,
                                           .refused = 600,
                                           .digest_mismatches = 700,
                                           .unreadable_slots = 800,
                                           .self_tests_failed = 900,
                                           .ways = {{"two", "tcp", "net", 20}}}};
  v1::HandoffLoad load;
  FillRankLoad(ranks, load);
  EXPECT_EQ(load.bytes(), 101);
  EXPECT_EQ(load.slots(), 202);
  EXPECT_EQ(load.seconds(), 3);
  EXPECT_EQ(load.slots_waiting(), 404);
  EXPECT_EQ(load.peers_lost(), 505);
  EXPECT_EQ(load.connections_refused(), 606);
  EXPECT_EQ(load.wire_digest_mismatches(), 707);
  EXPECT_EQ(load.unreadable_slots(), 808);
  EXPECT_EQ(load.self_tests_failed(), 909);
  ASSERT_EQ(load.rank_bytes_size(), 2);
  EXPECT_EQ(load.rank_bytes(0), 1);
  EXPECT_EQ(load.rank_bytes(1), 100);
  ASSERT_EQ(load.peers_size(), 2);
  EXPECT_EQ(load.peers(0).incarnation(), "one");
  EXPECT_EQ(load.peers(1).transport(), "tcp");
  EXPECT_EQ(load.peers(1).path(), "net");
  EXPECT_EQ(load.peers(1).gigabytes_per_second(), 20);
}

}  // namespace
}  // namespace baton::worker
