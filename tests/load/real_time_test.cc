#include "load/real_time.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace baton::load {
namespace {

TEST(RealTime, IsOfThisThreadAloneAndEndsWithTheObject) {
  const int before = sched_getscheduler(0) & ~SCHED_RESET_ON_FORK;
  {
    const RealTime real_time(true);
    EXPECT_EQ(sched_getscheduler(0) == (SCHED_RR | SCHED_RESET_ON_FORK), real_time.granted());
    if (!real_time.granted()) {
      EXPECT_EQ(sched_getscheduler(0) & ~SCHED_RESET_ON_FORK, before) << "where it is not allowed nothing changes";
    }
    int other = -1;
    std::thread([&other] { other = sched_getscheduler(0); }).join();
    EXPECT_EQ(other, SCHED_OTHER);
  }
  EXPECT_EQ(sched_getscheduler(0) & ~SCHED_RESET_ON_FORK, before);
}

TEST(RealTime, IsLeftAloneWhereItIsNotWanted) {
  const int before = sched_getscheduler(0) & ~SCHED_RESET_ON_FORK;
  const RealTime real_time(false);
  EXPECT_FALSE(real_time.granted());
  EXPECT_EQ(sched_getscheduler(0) & ~SCHED_RESET_ON_FORK, before);
}

}  // namespace
}  // namespace baton::load
