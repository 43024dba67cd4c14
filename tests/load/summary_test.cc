#include "load/summary.h"

#include <gmock/gmock.h>

#include "absl/strings/str_split.h"
#include "common/json.h"
#include "common/str_cat.h"
#include "load/report.h"

namespace baton::load {
namespace {

using testing::HasSubstr;
using testing::Not;
using Ms = std::chrono::milliseconds;

// Sent 2 ms after its turn; first token after `ttft`, then one each 10 ms.
Outcome Answered(size_t index, int ttft, int tokens) {
  Outcome o{.index = index, .due = Ms(100 * index), .waited = Ms(2), .sent = Ms(100 * index + 3)};
  for (int i = 0; i < tokens; ++i) o.arrivals.push_back(o.sent + Ms(ttft + 10 * i));
  o.end = o.arrivals.back();
  o.answer = {.text = "x", .prompt_tokens = 50, .completion_tokens = tokens, .counted = true, .finished = true};
  o.http_status = 200;
  return o;
}

RunResult Sample() {
  RunResult run;
  for (size_t i = 0; i < 9; ++i) run.outcomes.push_back(Answered(i, 10 * static_cast<int>(i + 1), 5));
  for (Outcome& o : run.outcomes)
    o.answer.stages = Stages{.queue_prefill = 1,
                             .prefill = o.TtftMs() - 7,
                             .transfer = 7,
                             .first_decode = 2,
                             .router = 0.5,
                             .reserve = 2,
                             .network = 0.5};
  Outcome failed{.index = 9, .failure = Failure::kRefused, .http_status = 503, .error = "HTTP 503: full"};
  run.outcomes.push_back(failed);
  run.duration = Ms(1000);
  run.most_at_a_time = 4;
  return run;
}

TEST(Statistics, PercentilesAreOnTheLineBetweenNeighbours) {
  const Statistics s({4, 1, 3, 2});
  EXPECT_EQ(s.mean(), 2.5);
  EXPECT_EQ(s.Percentile(50), 2.5);
  EXPECT_EQ(s.Percentile(100), 4);
  EXPECT_EQ(s.Percentile(0), 1);
  EXPECT_DOUBLE_EQ(s.Percentile(99), 3.97);
  EXPECT_EQ(Statistics({}).Percentile(99), 0);
}

TEST(Summary, AFailureIsCountedByKindAndIsInNoFigureOfTime) {
  const Summary s = Summarize(Sample(), {.ttft_ms = 50});
  EXPECT_EQ(s.offered, 10);
  EXPECT_EQ(s.completed, 9);
  EXPECT_EQ(s.failed, 1);
  EXPECT_EQ(s.failures.at("http_503"), 1);
  EXPECT_EQ(s.ttft.count(), 9u);
  EXPECT_EQ(s.ttft.mean(), 50);
  EXPECT_EQ(s.tpot.mean(), 10);
  EXPECT_EQ(s.itl.count(), 36u);
  EXPECT_EQ(s.e2el.Percentile(100), 130);
  EXPECT_EQ(*s.good, 5) << "of ten that were offered";
  EXPECT_EQ(s.output_tokens, 45);
  EXPECT_EQ(s.lag.Percentile(50), 1);
  EXPECT_EQ(s.queue.mean(), 2);
}

TEST(Summary, TheStagesOfAPercentileAreThoseOfOneRequest) {
  const Summary s = Summarize(Sample(), {});
  ASSERT_TRUE(s.median && s.p99);
  EXPECT_EQ(s.with_stages, 9);
  EXPECT_EQ(s.median->index, 4u);
  EXPECT_EQ(s.median->ttft_ms, 50);
  EXPECT_EQ(s.median->stages.prefill, 43);
  EXPECT_EQ(s.median->rest_ms(), 3) << "what comes after the first token is not taken off";
  EXPECT_EQ(s.median->second_ms, 10);
  EXPECT_EQ(s.p99->index, 8u);
}

TEST(Summary, TheBusiestSecondIsCountedFromTheFirstRequest) {
  RunResult run;
  for (int i = 0; i < 4; ++i) run.outcomes.push_back(Answered(static_cast<size_t>(i), 10, 5));
  for (Outcome& o : run.outcomes) {  // 500 ms apart, from 700 ms on; 50 ms each
    const Duration shift = Ms(700 + 400 * static_cast<int>(o.index));
    o.sent += shift;
    o.end += shift;
    for (Duration& at : o.arrivals) at += shift;
  }
  run.most_at_a_time = 1;
  const Summary s = Summarize(run, {});
  EXPECT_EQ(s.most_in_a_second, 2) << "two of them ran in the first second";
  EXPECT_EQ(s.most_at_a_time, 1);
  EXPECT_EQ(s.peak_tokens_per_s, 10);
}

TEST(Summary, GoalsAndPercentilesThatMakeNoSenseAreRefused) {
  for (const char* bad : {"ttft", "ttft:", "ttft:x", "itl:5", "ttft:-1", ":5"})
    EXPECT_FALSE(ParseGoal({bad}).ok()) << bad;
  EXPECT_EQ(*ParseGoal({"ttft:200", "tpot:50"})->tpot_ms, 50);
  for (const char* bad : {"", "x", "50,101", "-1"}) EXPECT_FALSE(ParsePercentiles(bad).ok()) << bad;
}

// The report of the sample: text and JSON.
std::pair<std::string, std::string> Reported() {
  BenchOptions o{.metric_percentiles = "50,99.9"};
  o.metadata = {"tp=2"};
  o.save_detailed = true;
  const RunResult run = Sample();
  const Measured measured{.model = "org/model",
                          .point = {10, 4},
                          .date = "20261123-141500",
                          .run = run,
                          .summary = Summarize(run, {.ttft_ms = 50}),
                          .verified = Verified{9, 1, 0, {3}}};
  const Report report{o, *ParsePercentiles(o.metric_percentiles), measured};
  return {ReportText(report), ReportJson(report)};
}

TEST(Report, HasTheKeysThatPeopleKnow) {
  const auto json = nlohmann::json::parse(Reported().second);
  constexpr const char* kKeys =
      "date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness max_concurrency "
      "duration completed "
      "failed total_input_tokens total_output_tokens request_throughput request_goodput output_throughput "
      "total_token_throughput max_output_tokens_per_s max_concurrent_requests mean_ttft_ms median_ttft_ms std_ttft_ms "
      "p50_ttft_ms p99.9_ttft_ms mean_tpot_ms mean_itl_ms mean_e2el_ms mean_client_queue_time_ms "
      "mean_e2el_including_client_queue_ms input_lens output_lens ttfts itls latencies start_times queue_times "
      "generated_texts errors rtfx";
  const std::vector<std::string> keys = absl::StrSplit(kKeys, ' ');
  for (const std::string& key : keys) EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_EQ(json["failures"]["http_503"], 1);
  EXPECT_EQ(json["good_share_of_offered"], 0.5);
  EXPECT_EQ(json["ttft_stages"]["p50"]["client_ms"], 3.0);
  EXPECT_EQ(json["verified"]["different"], 1);
  EXPECT_EQ(json["tp"], "2");
  EXPECT_EQ(json["errors"].size(), 10u);
}

TEST(Report, HasTheLabelsThatPeopleKnow) {
  const std::string text = Reported().first;
  EXPECT_THAT(text, HasSubstr("============ Serving Benchmark Result ============\n"
                              "Successful requests:                     9         \n"
                              "Failed requests:                         1         \n"
                              "Maximum request concurrency:             4         \n"
                              "Request rate configured (RPS):           10.00     \n"
                              "Benchmark duration (s):                  1.00      \n"));
  EXPECT_THAT(text, HasSubstr("---------------Time to First Token----------------\n"
                              "Mean TTFT (ms):                          50.00     \n"));
  EXPECT_THAT(text, HasSubstr("P99.9 TTFT (ms):"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "Median TTFT 50.0 = router 0.5 + reserve 2.0 + queue 1.0 + prefill 43.0 + network 0.5 + client's side 3.0"));
  EXPECT_THAT(text, HasSubstr("its second token came 10.0 later: transfer 7.0"));
  EXPECT_THAT(text, HasSubstr("1 times: HTTP 503: full"));
  EXPECT_THAT(text, HasSubstr("9 answers, 1 different"));
  EXPECT_THAT(text, Not(HasSubstr("This client was late")));
}

TEST(Report, SaysWhatAnInterruptedRunLeavesOutAndWhoseTokenizerWasNamed) {
  BenchOptions o{
      .tokenizer = "org/tokens", .ramp_up_strategy = "linear", .ramp_up_start_rps = 1, .ramp_up_end_rps = 11};
  Measured measured{.model = "m", .run = Sample()};
  measured.run.interrupted = true;
  measured.run.unfinished = 2;
  measured.run.unsent = 80;
  measured.summary = Summarize(measured.run, {});
  measured.verified = Verified{.compared = 4, .unasked = 3};
  const std::string text = ReportText({o, {99}, measured});
  EXPECT_THAT(text, HasSubstr(StrCat("Interrupted: of ", measured.run.outcomes.size() + 82,
                                     " requests 2 had no end yet "
                                     "and 80 were not sent; they are in no figure.")));
  EXPECT_THAT(text, HasSubstr("0 without a second answer, 3 not asked again"));
  const auto json = nlohmann::json::parse(ReportJson({o, {99}, measured}));
  EXPECT_EQ(json["interrupted"], true);
  EXPECT_EQ(json["unfinished"], 2);
  EXPECT_EQ(json["unsent"], 80);
  EXPECT_EQ(json["model_id"], "m");
  EXPECT_EQ(json["tokenizer_id"], "org/tokens");
  EXPECT_EQ(json["rps_change_events"].size(), 1u) << "ten of ninety: the rate has not reached 2";
}

TEST(Report, AClientsQueueIsShownWhereItIsAskedFor) {
  BenchOptions o;
  o.percentile_metrics = "client_queue_time,e2el_including_client_queue";
  const Measured measured{.model = "m", .run = Sample(), .summary = Summarize(Sample(), {})};
  const std::string text = ReportText({o, {99}, measured});
  EXPECT_THAT(text, HasSubstr("---------------Client-side Queueing---------------\n"
                              "Mean Client Queue Time (ms):             2.00      \n"));
  EXPECT_THAT(text, HasSubstr("Median E2EL incl. Client Queue (ms):     92.00     \n"));
  EXPECT_THAT(text, Not(HasSubstr("TTFT (ms)")));
  const auto json = nlohmann::json::parse(ReportJson({o, {99}, measured}));
  EXPECT_EQ(json["latencies"].size(), 10u) << "also without --save-detailed";
  EXPECT_EQ(json["queue_times"].size(), 10u);
  EXPECT_FALSE(json.contains("ttfts"));
}

TEST(Report, ARampSaysWhenItReachedEachRate) {
  BenchOptions o;
  o.ramp_up_strategy = "linear";
  o.ramp_up_start_rps = 1;
  o.ramp_up_end_rps = 4;
  Measured measured{.model = "m", .run = Sample(), .summary = Summarize(Sample(), {})};
  measured.run.started_at_s = 1000;
  const auto events = nlohmann::json::parse(ReportJson({o, {99}, measured}))["rps_change_events"];
  ASSERT_EQ(events.size(), 4u) << events;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(events[i]["rps"], static_cast<double>(i + 1));
    EXPECT_EQ(events[i]["timestamp"].get<std::string>().size(), 26u) << events[i];
  }
  EXPECT_EQ(events[1]["timestamp"].get<std::string>().substr(19), ".303000")
      << "request 3, sent 303 ms after the start";
  EXPECT_THAT(ResultFileName({o, {99}, measured}), testing::StartsWith("openai-ramp-up-linear-1qps-4qps-m-"));
}

TEST(Report, AClientThatIsLateSaysSo) {
  RunResult run = Sample();
  for (Outcome& o : run.outcomes) o.waited = o.sent - o.due - Ms(20);
  Measured measured{.model = "m", .run = run, .summary = Summarize(run, {})};
  const BenchOptions o;
  EXPECT_THAT(ReportText({o, {99}, measured}), HasSubstr("This client was late: p99 20.0 ms"));
  for (Outcome& one : measured.run.outcomes) one.due = {};
  measured.summary = Summarize(measured.run, {});
  EXPECT_THAT(ReportText({o, {99}, measured}), Not(HasSubstr("This client was late"))) << "nobody said when";
}

}  // namespace
}  // namespace baton::load
