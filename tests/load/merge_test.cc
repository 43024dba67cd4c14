#include "load/merge.h"

#include <gmock/gmock.h>

#include "common/json.h"
#include "load/report.h"
#include "tests/load/measured_fixture.h"

namespace baton::load {
namespace {

using testing::HasSubstr;

std::string Detailed(const Measured& measured) {
  BenchOptions o;
  o.save_detailed = true;
  return ReportJson({o, {99}, measured});
}

TEST(Merge, OneFileIsTheSameRunAgain) {
  Measured one = Steady("", {2, 3}, 0, 6, 20);
  one.run.outcomes[2] = {.index = 2,
                         .sent = std::chrono::milliseconds(120),
                         .end = std::chrono::milliseconds(180),
                         .failure = Failure::kRefused,
                         .http_status = 503,
                         .error = "HTTP 503: full"};
  one.summary = Summarize(one.run, {});
  const Measured merged = *MergeTexts({{"a", Detailed(one)}}, {});
  EXPECT_EQ(merged.model, "m");
  EXPECT_EQ(merged.point, one.point);
  EXPECT_EQ(merged.summary.completed, 5);
  EXPECT_EQ(merged.summary.failures, one.summary.failures);
  EXPECT_EQ(merged.summary.output_tokens, one.summary.output_tokens);
  EXPECT_NEAR(merged.summary.duration_s, one.summary.duration_s, 1e-6);
  EXPECT_NEAR(merged.summary.ttft.Percentile(99), one.summary.ttft.Percentile(99), 1e-3);
  EXPECT_NEAR(merged.summary.itl.mean(), one.summary.itl.mean(), 1e-3);
  EXPECT_EQ(merged.summary.with_stages, 5);
}

TEST(Merge, RunsLieBesideEachOtherAsTheirClocksSay) {
  const Measured first = Steady("", {2, 3}, 0, 6, 20);  // 6 times 60 ms
  Measured second = Steady("", {1, 4}, 0, 6, 20);
  second.run.started_at_s = 1000.12;
  const Measured merged = *MergeTexts({{"a", Detailed(second)}, {"b", Detailed(first)}}, {});
  EXPECT_EQ(merged.summary.offered, 12);
  EXPECT_NEAR(merged.summary.duration_s, 0.48, 1e-6);
  EXPECT_EQ(merged.run.most_at_a_time, 2);
  EXPECT_EQ(merged.point, (LoadPoint{3, 7}));
  EXPECT_EQ(merged.run.connections, 2);
}

TEST(Merge, RunsThatDoNotOverlapAreSaid) {
  const Measured first = Steady("", {2, 3}, 0, 6, 20);  // 6 times 60 ms
  Measured second = first;
  std::string note;
  for (const auto& [begin, said] : {std::pair{1000.2, false}, {1000.5, true}, {999.9, false}, {900.0, true}}) {
    second.run.started_at_s = begin;
    ASSERT_TRUE(MergeTexts({{"a", Detailed(first)}, {"b", Detailed(second)}}, {}, &note).ok());
    EXPECT_EQ(!note.empty(), said) << begin << note;
  }
  EXPECT_THAT(note, HasSubstr("--merge: a began 99.64 s after"));
}

TEST(Merge, WhatATraceTimedAndWhatASignalCutShortStaysSo) {
  Measured one = Steady("", {.own_times = true}, 0, 6, 20);
  one.run.interrupted = true;
  one.run.unfinished = 2;
  one.run.unsent = 5;
  const Measured whole = Steady("", {.own_times = true}, 0, 6, 20);
  const Measured merged = *MergeTexts({{"a", Detailed(one)}, {"b", Detailed(whole)}}, {});
  EXPECT_TRUE(merged.point.own_times);
  EXPECT_TRUE(merged.run.interrupted);
  EXPECT_EQ(merged.run.unfinished, 2);
  EXPECT_EQ(merged.run.unsent, 5);
  EXPECT_EQ(merged.summary.completed, 12);
  EXPECT_FALSE(
      MergeTexts({{"a", Detailed(whole)}, {"b", Detailed(Steady("", {2, 0}, 0, 6, 20))}}, {})->point.own_times);
}

TEST(Merge, AFileThatIsNoneIsRefusedWithItsName) {
  const auto refusal = [](const std::string& text) {
    return std::string(
        MergeTexts({{"good", Detailed(Steady("", {1, 0}, 0, 2, 9))}, {"bad", text}}, {}).status().message());
  };
  const auto good = nlohmann::json::parse(Detailed(Steady("", {1, 0}, 0, 2, 9)));
  EXPECT_THAT(refusal(""), HasSubstr("bad: it is not the JSON object of a run"));
  EXPECT_THAT(refusal("[]"), HasSubstr("bad: it is not"));
  EXPECT_THAT(refusal("{}"), HasSubstr("bad: it has no list \"input_lens\""));
  for (const auto& [key, value] : good.items()) {
    if (!value.is_array() || value.size() != 2) continue;
    auto shorter = good;
    shorter[key].erase(0);
    EXPECT_THAT(refusal(shorter.dump()), HasSubstr("bad: \"")) << key;
    if (key == "itls") continue;
    auto other = good;
    other[key][1] = nlohmann::json::object({{"queue_prefill_ms", "x"}});
    EXPECT_THAT(refusal(other.dump()), HasSubstr("bad: ")) << key;
  }
  auto other = good;
  other["model_id"] = "another";
  EXPECT_THAT(refusal(other.dump()), HasSubstr("bad: its model is another, that of the first file m"));
  other = good;
  other["ttfts"][0] = 1e300;
  EXPECT_THAT(refusal(other.dump()), HasSubstr("\"ttfts\" has 1e+300 s"));
  other = good;
  other["started_at"] = 1e12;
  EXPECT_THAT(refusal(other.dump()), HasSubstr("after the first one"));
}

TEST(Merge, AFileThatIsNotThereIsNamed) {
  const absl::Status status = Merge({"no/such/file"}, {}).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("no/such/file"));
  EXPECT_EQ(std::string(Merge({testing::TempDir()}, {}).status().message()),
            "--merge: cannot read " + testing::TempDir() + ": Is a directory");
}

}  // namespace
}  // namespace baton::load
