#include "load/bench_checks.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace baton::load {
namespace {

std::string Said(void (*change)(BenchOptions&)) {
  BenchOptions options;
  change(options);
  return std::string(CheckBench(options).message());
}

TEST(CheckBench, WhatIsPrintedIsMeasured) {
  EXPECT_EQ(Said([](BenchOptions& o) { o.percentile_metrics = "ttft,ttst,tpot,itl,e2el"; }), "");
  for (const char* bad : {"", "ttfs", "ttft,,itl", "ttft, itl"}) {
    BenchOptions options{.percentile_metrics = bad};
    EXPECT_FALSE(CheckBench(options).ok()) << bad;
  }
}

TEST(CheckBench, MetadataHasAKey) {
  EXPECT_EQ(Said([](BenchOptions& o) { o.metadata = {"a=b", "c=", "d=e=f"}; }), "");
  EXPECT_EQ(Said([](BenchOptions& o) { o.metadata = {"a=b", "c"}; }), "--metadata: \"c\" is not KEY=VALUE");
  EXPECT_EQ(Said([](BenchOptions& o) { o.metadata = {"=b"}; }), "--metadata: \"=b\" is not KEY=VALUE");
}

TEST(CheckBench, APromptIsNoLongerThanALineOfATraceMayAskFor) {
  EXPECT_EQ(Said([](BenchOptions& o) { o.random_input_len = 16 << 20; }), "");
  EXPECT_EQ(Said([](BenchOptions& o) { o.random_input_len = 99'999'999'999; }),
            "--random-input-len 99999999999: at most 16777216");
  EXPECT_EQ(Said([](BenchOptions& o) { o.output_len = (16 << 20) + 1; }), "--output-len 16777217: at most 16777216");
}

TEST(CheckBench, ARangeRatioIsANumberOrOneForEachOfBothLengths) {
  const auto both = [](const std::string& text) {
    const auto ratio = ParseRangeRatio(text);
    return ratio.ok() ? std::pair{ratio->input, ratio->output} : std::pair{-1.0, -1.0};
  };
  EXPECT_EQ(both("0.5"), std::pair(0.5, 0.5));
  EXPECT_EQ(both(R"({"input":0,"output":0.6})"), std::pair(0.0, 0.6));
  EXPECT_EQ(both(R"({"input": "0", "output": "0.05"})"), std::pair(0.0, 0.05)) << "as scripts write it";
  for (const char* bad : {"", "1", "-0.1", "nan", "x", "[0.5]", R"({"input":0.5})", R"({"input":0.5,"output":1})",
                          R"({"input":0.5,"output":null})", R"({"input":0,"output":0,"other":0})", "{"})
    EXPECT_EQ(both(bad), std::pair(-1.0, -1.0)) << bad;
  EXPECT_EQ(
      Said([](BenchOptions& o) { o.random_range_ratio = "2"; }),
      "--random-range-ratio: \"2\" is not a number from 0 to 0.999, nor {\"input\": NUMBER, \"output\": NUMBER} of "
      "such");
}

}  // namespace
}  // namespace baton::load
