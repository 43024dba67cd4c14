// Things that crash, end or hang are named, and the others run on.
#include "bench/gpu/run_each.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <vector>

namespace baton::bench {
namespace {

std::vector<Attempt> RunAll(size_t count, unsigned seconds, const std::function<std::string(size_t)>& run) {
  std::vector<Attempt> all;
  RunEach(count, seconds, run, [&](size_t i, const Attempt& a) {
    EXPECT_EQ(i, all.size());
    all.push_back(a);
  });
  EXPECT_EQ(all.size(), count);
  return all;
}

constexpr unsigned kAmple = 100;

TEST(RunEach, ResultsComeInOrderWholeAndFromOneChild) {
  const auto all = RunAll(
      3, kAmple, [](size_t i) { return i == 1 ? std::string(100000, 'x') + '\0' + "end" : std::to_string(getpid()); });
  EXPECT_EQ(all[1].result, std::string(100000, 'x') + '\0' + "end");
  EXPECT_EQ(all[0].result, all[2].result);
  EXPECT_NE(all[0].result, std::to_string(getpid()));
  for (const Attempt& a : all) EXPECT_EQ(a.death, "");
}

TEST(RunEach, WhatKillsItsProcessIsNamedAndTheOthersRun) {
  const auto all = RunAll(6, kAmple, [](size_t i) -> std::string {
    if (i == 0 || i == 3) raise(SIGKILL);
    if (i == 5) _exit(7);
    return "fine";
  });
  for (size_t i : {0, 3}) EXPECT_EQ(all[i].death, "killed by signal 9 (Killed)");
  EXPECT_EQ(all[5].death, "ended with exit code 7");
  for (size_t i : {1, 2, 4}) EXPECT_EQ(all[i].result + all[i].death, "fine");
}

TEST(RunEach, WhatDoesNotEndIsEnded) {
  const auto all = RunAll(2, 1, [](size_t i) -> std::string {
    for (int woken = 0; i == 0 && woken < 1000; ++woken) pause();
    return "fine";
  });
  EXPECT_EQ(all[0].death, "no end within 1 s");
  EXPECT_EQ(all[1].result, "fine");
}

TEST(RunEach, NothingIsNothing) {
  EXPECT_TRUE(RunAll(0, kAmple, [](size_t) { return ""; }).empty());
}

TEST(RunEach, TheEmulatorIsADevice) { EXPECT_FALSE(SaysThereIsNoDevice("test")); }

}  // namespace
}  // namespace baton::bench
