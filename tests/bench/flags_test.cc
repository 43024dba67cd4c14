// The command lines of bench programs: what is not known is refused, whatever its form.
#include "bench/lib/flags.h"

#include <gtest/gtest.h>

namespace baton::bench {
namespace {

TEST(BenchFlags, BothFormsOfAFlagAreTaken) {
  for (const std::vector<std::string>& line : {std::vector<std::string>{"m", "--only", "large", "--json", "f=1"},
                                               std::vector<std::string>{"--only=large", "m", "--json=f=1"}}) {
    const CommandLine read = ReadCommandLine(line, {"only", "json"}, 1);
    EXPECT_EQ(read.wrong, "");
    EXPECT_EQ(read.flags, (std::map<std::string, std::string>{{"only", "large"}, {"json", "f=1"}}));
    EXPECT_EQ(read.words, std::vector<std::string>{"m"});
  }
}

TEST(BenchFlags, WhatIsNotKnownIsRefused) {
  const auto wrong = [](const std::vector<std::string>& line, size_t words = 0) {
    return ReadCommandLine(line, {"only", "json"}, words).wrong;
  };
  EXPECT_EQ(wrong({"--onyl", "large"}), "unknown flag --onyl");
  EXPECT_EQ(wrong({"--onyl=large"}), "unknown flag --onyl");
  EXPECT_EQ(wrong({"--only"}), "--only wants a value");
  EXPECT_EQ(wrong({"--only", "--json", "f"}), "--only wants a value");
  EXPECT_EQ(wrong({"--only", "a", "--only=b"}), "--only is said twice");
  EXPECT_EQ(wrong({"large"}), "0 words beside flags are wanted, got 1");
  EXPECT_EQ(wrong({}, 1), "1 words beside flags are wanted, got 0");
}

TEST(BenchFlagsDeathTest, AProgramEndsWithTheUsageAndTakesNumbersOnlyWhereTheyAreWanted) {
  const auto flags = [](std::vector<const char*> line) {
    line.insert(line.begin(), "bench_x");
    return Flags(static_cast<int>(line.size()), const_cast<char**>(line.data()), {"only", "threads"});
  };
  const auto ends = testing::ExitedWithCode(2);
  EXPECT_EXIT(flags({"--x=1"}), ends, "bench_x: unknown flag --x\nusage: bench_x .--only VALUE. .--threads VALUE.");
  EXPECT_EXIT(flags({"--threads", "two"}).Count("threads", 2), ends, "whole number from 1 on, got \"two\"|is a number");
  EXPECT_EXIT(flags({"--threads", "1.5"}).Count("threads", 2), ends, "a whole number from 1 on, got \"1.5\"");
  EXPECT_EXIT(flags({"--threads="}).Count("threads", 2), ends, "--threads is a number, got \"\"");
  EXPECT_EXIT(flags({"--only=big"}).OneOf("only", {"large"}), ends, "--only is one of large, got \"big\"");
  EXPECT_EQ(flags({"--threads=3"}).Count("threads", 2), 3);
  EXPECT_EQ(flags({}).Count("threads", 2), 2);
  EXPECT_EQ(flags({}).OneOf("only", {"large"}), "");
}

}  // namespace
}  // namespace baton::bench
