#include "load/formats/formats.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_split.h"
#include "common/json.h"
#include "common/str_cat.h"
#include "tests/load/measured_fixture.h"

namespace baton::load {
namespace {

using Json = nlohmann::json;

std::string Missing(const Json& object, const char* keys) {
  std::string out;
  const std::vector<std::string> names = absl::StrSplit(keys, ' ');
  for (const std::string& key : names) {
    if (!object.contains(key)) out += key + " ";
  }
  return out;
}

// Two runs of ten answers (10 ms to the first of 5 tokens, 10 ms apart); of the second, one is refused.
std::vector<Measured> Two() {
  std::vector<Measured> all = {Steady("", {4, 0}, 0, 10, 10), Steady("", {8, 2}, 0, 10, 10)};
  Outcome& bad = all[1].run.outcomes[9];
  bad = Outcome{.index = 9, .due = bad.due, .sent = bad.sent, .end = bad.end};
  bad.failure = Failure::kRefused;
  bad.http_status = 429;
  bad.error = "HTTP 429: full";
  for (Measured& m : all) m.summary = Summarize(m.run, {});
  return all;
}

// What its own schema requires, and what its readers take.
constexpr const char* kGuidellmMetrics =
    "request_totals requests_per_second request_concurrency request_latency request_streaming_iterations_count "
    "prompt_token_count output_token_count total_token_count time_to_first_token_ms time_to_first_output_token_ms "
    "time_per_output_token_ms inter_token_latency_ms time_to_last_round_trip_ms avg_round_trip_time_ms "
    "prompt_tokens_per_second output_tokens_per_second tokens_per_second output_tokens_per_iteration "
    "iter_tokens_per_iteration text image video audio tool_call";
constexpr const char* kDistribution =
    "mean median mode variance std_dev min max count total_sum percentiles pdf mean_ci percentile_cis";
constexpr const char* kGuidellmTimes =
    "start_time request_start_time measure_start_time measure_end_time request_end_time end_time requests_made "
    "generation_delay queued_time_avg resolve_start_delay_avg resolve_targeted_start_delay_avg "
    "request_start_delay_avg request_targeted_start_delay_avg request_time_avg resolve_end_delay_avg resolve_time_avg "
    "finalized_delay_avg processed_delay_avg";

TEST(Formats, GuidellmHasABenchmarkPerRunWithTheFiguresOfBothStates) {
  const Json report = Json::parse(GuidellmReport(Two(), {}));
  EXPECT_EQ(report["metadata"]["version"], 2);
  EXPECT_EQ(report["config"]["spec"]["profile"]["kind"], "poisson");
  ASSERT_EQ(report["benchmarks"].size(), 2u);
  const Json& second = report["benchmarks"][1];
  EXPECT_EQ(Missing(second, "type_ config scheduler_state scheduler_metrics metrics requests"), "");
  EXPECT_EQ(Missing(second["config"], "run_id run_index strategy constraints profile requests backend environment"),
            "");
  EXPECT_EQ(Missing(second["metrics"], kGuidellmMetrics), "");
  EXPECT_EQ(Missing(second["scheduler_metrics"], kGuidellmTimes), "");
  const Json& metrics = second["metrics"];
  EXPECT_EQ(metrics["request_totals"], (Json{{"successful", 9}, {"errored", 1}, {"incomplete", 0}, {"total", 10}}));
  EXPECT_EQ(
      Missing(metrics["text"], "tokens words characters") + Missing(metrics["video"], "tokens frames seconds bytes"),
      "");
  const Json& first = metrics["time_to_first_token_ms"]["successful"];
  EXPECT_EQ(Missing(first, kDistribution), "");
  EXPECT_EQ(first["mean_ci"], (Json{{"lower", 10.0}, {"upper", 10.0}}));
  EXPECT_EQ(first["percentile_cis"]["p50"], (Json{{"lower", 10.0}, {"upper", 10.0}}));
  EXPECT_TRUE(first["percentile_cis"]["p99"].is_null()) << "nine cannot say that";
  EXPECT_TRUE(metrics["inter_token_latency_ms"]["successful"]["mean_ci"].is_null()) << "it has weights";
  EXPECT_EQ(second["config"]["confidence"], 0.95);
  EXPECT_TRUE(second["config"]["slo"].is_null() && metrics["slo_attainment"].is_null());
  EXPECT_EQ(metrics["slo_determined_requests"], 0);
  EXPECT_EQ(Missing(first["percentiles"], "p001 p01 p05 p10 p25 p50 p75 p90 p95 p99 p999"), "");
  EXPECT_EQ(first["mean"], 10.0);
  EXPECT_EQ(first["count"], 9);
  EXPECT_DOUBLE_EQ(metrics["inter_token_latency_ms"]["successful"]["mean"].get<double>(), 10.0) << "it is our TPOT";
  EXPECT_DOUBLE_EQ(metrics["time_per_output_token_ms"]["successful"]["mean"].get<double>(), 10.0)
      << "50 ms of 5 tokens";
  EXPECT_DOUBLE_EQ(metrics["request_latency"]["successful"]["mean"].get<double>(), 0.05) << "seconds";
  EXPECT_NEAR(metrics["output_tokens_per_second"]["successful"]["mean"].get<double>(), 45 / 0.5, 1e-9);
  EXPECT_NEAR(metrics["request_concurrency"]["successful"]["mean"].get<double>(), 0.9, 1e-9)
      << "nine tenths of the run somebody was answered";
  EXPECT_EQ(second["requests"]["errored"][0]["info"]["error"], "HTTP 429: full");
  EXPECT_EQ(second["requests"]["successful"].size(), 9u);
  EXPECT_EQ(second["requests"]["successful"][1]["info"]["timings"]["request_start"], 1000.05);
}

TEST(Formats, OfGuidellmAnAnswersGapCountsAsOftenAsItHasGapsAndWhoFailsKeepsNoGoal) {
  std::vector<Measured> all = Two();
  Outcome& longer = all[1].run.outcomes[0];  // 21 tokens in the time of 5: gaps of 2 ms
  longer.answer.completion_tokens = 21;
  longer.answer.text = "two w\xc3\xb6rds";
  BenchOptions options;
  options.goodput = {"ttft:10"};
  const Json report = Json::parse(GuidellmReport(all, options));
  const Json& metrics = report["benchmarks"][1]["metrics"];
  const Json& gaps = metrics["inter_token_latency_ms"]["successful"];
  EXPECT_DOUBLE_EQ(gaps["mean"].get<double>(), (20 * 2.0 + 8 * 4 * 10.0) / 52);
  EXPECT_EQ(gaps["count"], 52);
  EXPECT_EQ(metrics["slo_attainment"], 0.9) << "of ten, one has failed";
  EXPECT_EQ(metrics["slo_determined_requests"], 10);
  EXPECT_NEAR(metrics["request_goodput"]["successful"]["mean"].get<double>(), 9 / 0.5, 1e-9);
  EXPECT_EQ(report["benchmarks"][1]["config"]["slo"], (Json{{"ttft_ms", 10.0}}));
  const Json& text = metrics["text"];
  EXPECT_EQ(text["tokens"]["input"]["successful"]["total_sum"], 9 * 50.0);
  EXPECT_EQ(text["tokens"]["output"]["successful"]["total_sum"], 8 * 5 + 21.0);
  EXPECT_EQ(text["words"]["output"]["successful"]["max"], 2.0);
  EXPECT_EQ(text["characters"]["output"]["successful"]["max"], 9.0);
  EXPECT_TRUE(text["words"]["input"].is_null()) << "nobody keeps the prompt";
}

TEST(Formats, OfGuidellmTpotEndsWithTheLastTokenAndAnAnswerOfOneIsNotJudgedByIt) {
  std::vector<Measured> all = Two();
  for (Outcome& o : all[1].run.outcomes) o.end += std::chrono::milliseconds(100);  // after the last token
  Outcome& one = all[1].run.outcomes[0];
  one.arrivals.resize(1);
  one.answer.completion_tokens = 1;
  BenchOptions options;
  options.goodput = {"tpot:10", "e2el:1000"};
  const Json metrics = Json::parse(GuidellmReport(all, options))["benchmarks"][1]["metrics"];
  EXPECT_EQ(metrics["slo_determined_requests"], 9) << "ten less the one of one token";
  EXPECT_DOUBLE_EQ(metrics["slo_attainment"].get<double>(), 8.0 / 9);
}

TEST(Formats, WhoHasASchedulePutsItsDelaysIntoGuidellmsReportAndATraceIsReplayed) {
  std::vector<Measured> all = Two();
  all[0].point = {.own_times = true};
  all[1].point = {.max_concurrency = 3};
  BenchOptions options;
  options.trace_speed = 4;
  const Json report = Json::parse(GuidellmReport(all, options));
  const Json& trace = report["benchmarks"][0];
  EXPECT_EQ(trace["config"]["strategy"]["type_"], "trace");
  EXPECT_EQ(trace["config"]["strategy"]["time_scale"], 0.25);
  EXPECT_EQ(trace["config"]["profile"], (Json{{"kind", "replay"}, {"time_scale", 0.25}}));
  EXPECT_EQ(trace["metrics"]["request_dispatch_delay"]["successful"]["max"], 0.0);
  const Json& closed = report["benchmarks"][1];
  EXPECT_EQ(closed["config"]["strategy"]["type_"], "concurrent");
  EXPECT_FALSE(closed["metrics"].contains("request_dispatch_delay")) << "nothing was due";
}

TEST(Formats, SglangCallsTheRateOfATraceTrace) {
  std::vector<Measured> all = Two();
  all[0].point = {.own_times = true};
  all[1].point = {.max_concurrency = 3};
  const std::vector<std::string> lines = absl::StrSplit(SglangLines(all, {}), '\n', absl::SkipEmpty());
  EXPECT_EQ(Json::parse(lines[0])["request_rate"], "trace");
  EXPECT_TRUE(Json::parse(lines[1])["request_rate"].is_null());
}

TEST(Formats, SglangHasALinePerRun) {
  const std::string text = SglangLines(Two(), {});
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 2u);
  const Json line = Json::parse(lines[1]);
  EXPECT_EQ(Missing(line,
                    "tag backend dataset_name request_rate max_concurrency sharegpt_output_len random_input_len "
                    "random_output_len random_range_ratio server_info duration completed total_input_tokens "
                    "total_input_text_tokens total_input_vision_tokens total_output_tokens "
                    "total_output_tokens_retokenized request_throughput input_throughput output_throughput "
                    "total_throughput mean_e2e_latency_ms median_e2e_latency_ms std_e2e_latency_ms p90_e2e_latency_ms "
                    "p95_e2e_latency_ms p99_e2e_latency_ms mean_ttft_ms p99_ttft_ms mean_tpot_ms p95_tpot_ms "
                    "median_itl_ms p95_itl_ms max_itl_ms concurrency accept_length max_output_tokens_per_s "
                    "max_concurrent_requests input_lens output_lens ttfts itls generated_texts errors"),
            "");
  EXPECT_EQ(line["completed"], 9);
  EXPECT_EQ(line["mean_e2e_latency_ms"], 50.0);
  EXPECT_NEAR(line["concurrency"].get<double>(), 0.9, 1e-9) << "nine tenths of the run somebody was answered";
  EXPECT_NEAR(line["total_throughput"].get<double>(), 9 * 55 / 0.5, 1e-9);
  EXPECT_EQ(line["errors"].size(), 10u);
}

TEST(Formats, InferencePerfHasAStagePerRunAndNumbersThatAgree) {
  BenchOptions options;
  options.goodput = {"ttft:5", "tpot:10", "e2el:50"};
  const auto files = InferencePerfFiles(Two(), options);
  ASSERT_EQ(files.size(), 4u);
  const Json stage = Json::parse(files.at("stage_1_lifecycle_metrics.json"));
  const Json summary = Json::parse(files.at("summary_lifecycle_metrics.json"));
  const Json requests = Json::parse(files.at("per_request_lifecycle_metrics.json"));
  EXPECT_EQ(stage["load_summary"]["requested_rate"], 8.0);
  EXPECT_EQ(stage["load_summary"]["concurrency"], 2);
  EXPECT_EQ(stage["failures"]["by_label"],
            (Json{{"429 - Rate Limit", {{"count", 1}, {"messages", {{{"message", "full"}}}}}}}));
  EXPECT_EQ(summary["load_summary"]["count"], 20);
  EXPECT_EQ(summary["successes"]["count"], 19);
  const Json& latency = summary["successes"]["latency"];
  EXPECT_DOUBLE_EQ(latency["time_to_first_token"]["median"].get<double>(), 0.01);
  EXPECT_DOUBLE_EQ(latency["time_per_output_token"]["mean"].get<double>(), 0.01);
  EXPECT_DOUBLE_EQ(latency["normalized_time_per_output_token"]["p99"].get<double>(), 0.01);
  EXPECT_DOUBLE_EQ(latency["request_latency"]["max"].get<double>(), 0.05);
  const Json& good = summary["successes"]["goodput_metrics"];
  EXPECT_EQ(good["goodput_percentage"], 0.0);
  EXPECT_EQ(good["token_goodput"], 0.0);
  EXPECT_EQ(good["ttft_attainment_percentage"], 0.0);
  EXPECT_EQ(good["tpot_attainment_percentage"], 100.0);
  EXPECT_EQ(good["request_latency_attainment_percentage"], 100.0);
  EXPECT_EQ(Missing(summary["successes"], "request_size_bytes image video audio"), "");
  EXPECT_EQ(summary["successes"]["image"]["count"]["max"], 0.0);
  EXPECT_EQ(summary["successes"]["prompt_tokens"]["total"], 950.0);
  EXPECT_EQ(requests.size(), 20u);
  EXPECT_EQ(requests[19]["error"], (Json{{"error_type", "HTTP Error 429"}, {"error_msg", "full"}}));
  EXPECT_EQ(requests[0]["info"]["input_tokens"], 50);
  EXPECT_EQ(requests[0]["info"]["response_metrics"]["output_token_times"].size(), 5u);
}

TEST(Formats, OfInferencePerfAFailuresLabelIsItsStatusOrItsKindWithEachMessageOnceTheMostFrequentFirst) {
  std::vector<Measured> all = {Steady("", {4, 0}, 0, 12, 10)};
  const auto fail = [&](size_t index, Failure failure, int status, const std::string& error) {
    Outcome& o = all[0].run.outcomes[index];
    o.failure = failure;
    o.http_status = status;
    o.error = error;
  };
  fail(0, Failure::kTimeout, 0, "no answer: timeout");
  fail(1, Failure::kRefused, 400, "HTTP 400: This model's maximum context length is 8 tokens");
  fail(2, Failure::kRefused, 503, "HTTP 503: busy");
  fail(3, Failure::kRefused, 503, "HTTP 503: busy");
  fail(4, Failure::kRefused, 503, "HTTP 503: gone");
  fail(5, Failure::kRefused, 418, "HTTP 418: a teapot");
  fail(6, Failure::kBroken, 200, "in the middle of the answer: end of file");
  fail(7, Failure::kError, 200, "boom");
  fail(8, Failure::kConnect, 0, "connecting: refused");
  all[0].summary = Summarize(all[0].run, {});
  const auto files = InferencePerfFiles(all, {});
  const auto labels = nlohmann::ordered_json::parse(files.at("stage_0_lifecycle_metrics.json"))["failures"]["by_label"];
  std::string names;
  for (const auto& [name, label] : labels.items()) names += name + StrCat(" ", label["count"].dump(), "; ");
  EXPECT_EQ(names,
            "503 - Service Unavailable 3; Timeout 1; 400 - Context Window 1; 418 - other 1; clientpayloaderror 1; "
            "inbanderror 1; Connection Error 1; ");
  EXPECT_EQ(labels["503 - Service Unavailable"]["messages"], (Json{{{"message", "busy"}}, {{"message", "gone"}}}));
}

TEST(Formats, AWishThatIsNoneIsRefusedAndAPathThatCannotBeIsSaid) {
  for (const char* bad : {"guidellm", "guidellm=", "vllm=x", "=x", ""})
    EXPECT_THAT(ParseSaveAs({bad}).status().message(), testing::HasSubstr("inference-perf=FOLDER")) << bad;
  const auto wishes = *ParseSaveAs({"sglang=/dev/null/x", "inference-perf=/dev/null/y"});
  for (const SaveWish& wish : wishes)
    EXPECT_THAT(SaveAs(wish, Two(), {}).message(), testing::HasSubstr(wish.path)) << wish.format;
}

TEST(Formats, AFolderOfInferencePerfIsMade) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "formats" / "perf";
  ASSERT_TRUE(SaveAs({"inference-perf", folder.string()}, Two(), {}).ok());
  EXPECT_TRUE(std::filesystem::exists(folder / "stage_0_lifecycle_metrics.json"));
  std::filesystem::remove_all(folder.parent_path());
}

}  // namespace
}  // namespace baton::load
