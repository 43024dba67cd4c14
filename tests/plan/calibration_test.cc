// Factors come from half of the requests and are judged by the other half; what is no detailed result is said.
#include "plan/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/json.h"
#include "common/str_cat.h"
#include "plan/observed_load.h"
#include "plan/sensitivity.h"

namespace baton::plan {
namespace {

using ::testing::HasSubstr;

// One layer whose step takes 1 ms of weights, whatever else is in it: memory is slow, arithmetic is free.
MemoryPlan Plan() {
  MemoryPlan plan;
  plan.model.hidden_size = plan.model.intermediate_size = 8;
  plan.model.num_layers = plan.model.num_heads = plan.model.num_kv_heads = 1;
  plan.model.head_dim = plan.model.vocab_size = 8;
  plan.model.layers.resize(1);
  plan.max_model_len = 100000;
  plan.kv_tokens = 100000;
  RankPlan rank;
  rank.memory.weights.mlp = 1000;
  plan.ranks.push_back(rank);
  return plan;
}
constexpr Machine kMachine{.bytes_per_s = 1e6, .flops = 1e15};

nlohmann::json Bench(int requests, double prefill_ms, double step_ms) {
  nlohmann::json out = {{"duration", 1000.0}};
  for (int i = 0; i < requests; ++i) {
    out["input_lens"].push_back(10);
    out["output_lens"].push_back(11);
    out["ttfts"].push_back((prefill_ms + 50) / 1e3);  // 50 ms of queue
    out["latencies"].push_back((prefill_ms + 50 + 10 * step_ms) / 1e3);
    out["stages"].push_back({{"prefill_ms", prefill_ms}});
  }
  return out;
}

absl::StatusOr<Calibration> Calibrated(const nlohmann::json& bench) {
  return Calibrate(bench.dump(), worker::WorkerConfig(), Plan(), kMachine, 1);
}

TEST(Calibration, FactorsAreWhatWasMeasuredOverWhatIsPlanned) {
  const auto made = Calibrated(Bench(20, 3, 2));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_NEAR(made->prefill_factor, 3, 1e-9) << "without the queue, which the server's stages tell apart";
  EXPECT_NEAR(made->decode_factor, 2, 1e-9);
  EXPECT_NEAR(made->ttft_error_before, 2.0 / 3, 1e-9);
  EXPECT_NEAR(made->tpot_error_before, 0.5, 1e-9);
  EXPECT_NEAR(made->ttft_error_after, 0, 1e-9);
  EXPECT_THAT(CalibrationText(*made), HasSubstr("--prefill-factor 3.0000 --decode-factor 2.0000"));
}

TEST(Calibration, TheErrorIsThatOfRequestsTheFactorsHaveNotSeen) {
  nlohmann::json bench = Bench(20, 2, 2);
  for (size_t i = 1; i < 20; i += 2) bench["stages"][i]["prefill_ms"] = 4;
  const auto made = Calibrated(bench);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_NEAR(made->prefill_factor, 2, 1e-9);
  EXPECT_NEAR(made->ttft_error_after, 0.5, 1e-9);
}

TEST(Calibration, EightOfTenOfTheRequestsThatWereNotSeenLieInTheRange) {
  nlohmann::json bench = Bench(40, 2, 2);
  for (size_t i = 0; i < 20; ++i) bench["stages"][2 * i + 1]["prefill_ms"] = 2.0 + 0.1 * static_cast<double>(i);
  const auto made = Calibrated(bench);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_NEAR(made->ttft_range.low, 2.2 / 2, 1e-9) << "the third of twenty";
  EXPECT_NEAR(made->ttft_range.high, 3.7 / 2, 1e-9) << "the third last";
  EXPECT_NEAR(made->tpot_range.low, 1, 1e-9);
  EXPECT_NEAR(made->tpot_range.high, 1, 1e-9);
}

TEST(Calibration, WhatIsNoDetailedResultIsSaid) {
  EXPECT_THAT(Calibrated({{"ttfts", 3}}).status().message(), HasSubstr("no list \"ttfts\""));
  EXPECT_THAT(Calibrated(Bench(5, 1, 1)).status().message(), HasSubstr("5 prompts"));
  nlohmann::json uneven = Bench(20, 1, 1);
  uneven["latencies"].erase(3);
  EXPECT_THAT(Calibrated(uneven).status().message(), HasSubstr("\"latencies\" has 19 entries, \"ttfts\" 20"));
  nlohmann::json huge = Bench(20, 1, 1);
  huge["input_lens"][7] = 1e300;
  EXPECT_THAT(Calibrated(huge).status().message(), HasSubstr("\"input_lens\"[7] is 1e+300: at most 1e+09"));
}

TEST(Calibration, WhatIsNoListOfCachedTokensCountsNone) {
  for (const nlohmann::json& odd :
       {nlohmann::json(5), nlohmann::json("x"), nlohmann::json{{"a", 1}}, nlohmann::json()}) {
    nlohmann::json bench = Bench(20, 3, 2);
    bench["cached_lens"] = odd;
    const auto made = Calibrated(bench);
    ASSERT_TRUE(made.ok()) << odd << made.status();
    EXPECT_NEAR(made->prefill_factor, 3, 1e-9) << odd;
  }
}

TEST(Calibration, FactorsSlowPlannedTimesDown) {
  Machine slow = kMachine;
  slow.prefill_factor = 3, slow.decode_factor = 2;
  const Load load{.isl = 10, .osl = 10, .ttft_ms = 1e6, .tpot_ms = 1e6};
  const auto fast = PlanRoofline(worker::WorkerConfig(), Plan(), kMachine, load),
             slowed = PlanRoofline(worker::WorkerConfig(), Plan(), slow, load);
  ASSERT_TRUE(fast.ok() && slowed.ok());
  EXPECT_NEAR(slowed->prefill_ms, 3 * fast->prefill_ms, 1e-9);
  EXPECT_NEAR(slowed->decode_ms, 2 * fast->decode_ms, 1e-9);
}

constexpr char kMetrics[] = R"(# HELP vllm:request_prompt_tokens x
vllm:request_prompt_tokens_sum{model_name="m"} 1000.0
vllm:request_prompt_tokens_count{model_name="m"} 4
vllm:request_prompt_tokens_sum{model_name="n"} 600
vllm:request_prompt_tokens_count{model_name="n"} 4
vllm:request_generation_tokens_sum 160
vllm:request_generation_tokens_count 8
vllm:prefix_cache_queries_total 1600
vllm:prefix_cache_hits_total 400
vllm:time_to_first_token_seconds_sum 0.8
vllm:time_to_first_token_seconds_count 8
)";

TEST(ObservedLoad, LengthsAreMeansOverAllLabels) {
  const auto load = ReadObservedLoad(kMetrics);
  ASSERT_TRUE(load.ok()) << load.status();
  EXPECT_EQ(load->requests, 8);
  EXPECT_EQ(load->isl, 200);
  EXPECT_EQ(load->osl, 20);
  EXPECT_EQ(load->hit_share, 0.25);
  EXPECT_EQ(load->ttft_ms, 100);
  EXPECT_FALSE(load->tpot_ms);
}

TEST(ObservedLoad, AnotherServersMetricsAreNamed) {
  EXPECT_THAT(ReadObservedLoad("sglang:num_running_reqs 3\nnode_cpu 1\n").status().message(),
              HasSubstr("but names that begin with node, sglang"));
  EXPECT_THAT(ReadObservedLoad("<html>").status().message(), HasSubstr("and nothing else"));
  EXPECT_THAT(
      ReadObservedLoad("vllm:request_prompt_tokens_sum 0\nvllm:request_prompt_tokens_count 0\n").status().message(),
      HasSubstr("no request was answered yet"));
  for (const char* bad : {"NaN", "-3", "+Inf", "1e300"}) {
    const std::string text = StrCat("vllm:request_prompt_tokens_sum ", bad, "\nvllm:request_prompt_tokens_count 2\n",
                                    "vllm:request_generation_tokens_sum 9\nvllm:request_generation_tokens_count 2\n");
    EXPECT_THAT(ReadObservedLoad(text).status().message(), HasSubstr("vllm:request_prompt_tokens_sum is ")) << bad;
  }
}

TEST(Sensitivity, LengthsHitsAndAWorkerLessAreVaried) {
  const Proposal layout{.prefill = 1, .decode = 3};
  Machine machine = kMachine;
  machine.link_bytes_per_s = 1e9;
  const Load load{.isl = 1000, .osl = 10, .ttft_ms = 1e6, .tpot_ms = 1e6};
  const auto made = Vary(worker::WorkerConfig(), Plan(), machine, load, layout);
  ASSERT_TRUE(made.ok()) << made.status();
  std::vector<std::string> names;
  for (const Variation& v : *made) names.push_back(v.what);
  EXPECT_THAT(names, ::testing::ElementsAre(
                         "as planned", "prompts half as long", "prompts twice as long", "answers half as long",
                         "answers twice as long", "nothing of a prompt cached", "50 % of a prompt cached",
                         "90 % of a prompt cached", "one prefill worker less", "one decode worker less"));
  EXPECT_EQ((*made)[8].outcome.requests_per_s, 0);
  EXPECT_THAT((*made)[8].outcome.why_not, HasSubstr("nobody is left"));
  EXPECT_EQ((*made)[9].outcome.decode, 2);
  EXPECT_THAT(VariationsText(*made, 2), HasSubstr("a rate of 3/s"));
}

}  // namespace
}  // namespace baton::plan
