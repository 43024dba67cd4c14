#include "load/bench_checks.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace baton::load
