// What /metrics says of workers' halves of handoffs.
#include "router/metrics/router_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/str_cat.h"
#include "router/fleet/relay_codec.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

LinkView Worker(int slot, WorkerRole role, const std::string& incarnation) {
  WorkerFacts facts;
  facts.role = role, facts.incarnation = incarnation;
  facts.worker_id = std::string(WorkerRoleName(role)) + "-0";
  LinkView view;
  view.id = {slot, 1};
  view.state = LinkState::kReady;
  view.facts = std::make_shared<const WorkerFacts>(facts);
  view.load.handoff.transport = "shm";
  return view;
}

std::string Line(const std::string& text, const std::string& begin) {
  const size_t at = text.find("\n" + begin);
  return at == text.npos ? "" : text.substr(at + 1, text.find('\n', at + 1) - at - 1);
}

TEST(RouterMetrics, APeersRateIsThereWhileThePeerIs) {
  RouterMetrics metrics("m");
  std::vector<LinkView> workers = {Worker(0, WorkerRole::kDecode, "d"), Worker(1, WorkerRole::kPrefill, "p")};
  workers[1].load.handoff.peers = std::make_shared<const std::vector<PeerPath>>(
      std::vector<PeerPath>{{"d", "ucx-shm", "posix/memory put", 12.5}, {"somebody else's", "tcp", "tcp", 1}});
  const std::string line = Line(metrics.Render(workers, {}), "baton_kv_peer_gigabytes_per_second{");
  for (const char* part :
       {"engine=\"1\"", "peer=\"decode-0\"", "transport=\"ucx-shm\"", "path=\"posix/memory put\"", "} 12.5"}) {
    EXPECT_THAT(line, HasSubstr(part));
  }
  workers[1].load.handoff.peers = std::make_shared<const std::vector<PeerPath>>();
  EXPECT_THAT(metrics.Render(workers, {}), Not(HasSubstr("\nbaton_kv_peer_gigabytes_per_second{")));
}

TEST(RouterMetrics, WhatGrammarsCostAWorkerIsCountedMasksMadeAtALowPriorityToo) {
  RouterMetrics metrics("m");
  std::vector<LinkView> workers = {Worker(0, WorkerRole::kBoth, "b")};
  EXPECT_EQ(Line(metrics.Render(workers, {}), "baton_worker_grammar_masks_slow_total{"), "") << "it has no tokenizer";
  v1::Load load;
  load.mutable_grammars()->set_masks(9);
  load.mutable_grammars()->set_masks_late(5);
  load.mutable_grammars()->set_masks_slow(3);
  workers[0].load = DecodeLoad(load);
  const std::string text = metrics.Render(workers, {});
  EXPECT_THAT(Line(text, "baton_worker_grammar_masks_total{"), HasSubstr("} 9"));
  EXPECT_THAT(Line(text, "baton_worker_grammar_masks_late_total{"), HasSubstr("} 5"));
  EXPECT_THAT(Line(text, "baton_worker_grammar_masks_slow_total{"), HasSubstr("} 3"));
}

TEST(RouterMetrics, CountersAreThereBeforeTheFirstReport) {
  RouterMetrics metrics("m");
  std::vector<LinkView> workers = {Worker(0, WorkerRole::kDecode, "d"), Worker(1, WorkerRole::kBoth, "b")};
  workers[0].load = {}, workers[1].load = {};
  std::string text = metrics.Render(workers, {});
  for (const char* name :
       {"baton_kv_transfer_bytes_total", "baton_kv_transfer_failures_total", "baton_handoff_recomputes_total"}) {
    EXPECT_THAT(Line(text, StrCat(name, "{engine=\"0\"")), HasSubstr("} 0")) << name;
    EXPECT_EQ(Line(text, StrCat(name, "{engine=\"1\"")), "") << "it hands nothing over";
  }
  EXPECT_EQ(Line(text, "baton_landing_slots_free{"), "") << "how many are free is not known";
  workers[0].load.handoff.transport = "shm", workers[0].load.handoff.bytes = 5;
  text = metrics.Render(workers, {});
  EXPECT_THAT(text, HasSubstr("role=\"decode\",transport=\"shm\",worker=\"decode-0\"} 5"));
}

TEST(RouterMetrics, FailuresGrowByReasonAndSurviveARestart) {
  RouterMetrics metrics("m");
  std::vector<LinkView> workers = {Worker(0, WorkerRole::kDecode, "first life")};
  workers[0].load.handoff.wire_digest_mismatches = 2, workers[0].load.handoff.unreadable_slots = 1;
  workers[0].load.handoff.rings_written_off = 3;
  workers[0].load.calls_refused = 7, workers[0].load.handoff.connections_refused = 8;
  metrics.Render(workers, {});
  workers[0] = Worker(0, WorkerRole::kDecode, "second life");
  workers[0].load.handoff.wire_digest_mismatches = 3;
  const std::string text = metrics.Render(workers, {});
  EXPECT_THAT(text, HasSubstr("baton_kv_digest_mismatches_total{engine=\"0\",kind=\"wire\",model_name=\"m\",role="
                              "\"decode\",worker=\"decode-0\"} 5"));
  EXPECT_THAT(text, HasSubstr("baton_kv_transfer_failures_total{engine=\"0\",model_name=\"m\",reason=\"slot_"
                              "unreadable\",role=\"decode\",worker=\"decode-0\"} 1"));
  EXPECT_THAT(Line(text, "baton_handoff_rings_written_off_total{"), HasSubstr("worker=\"decode-0\"} 3"));
  EXPECT_THAT(text, HasSubstr("port=\"worker\",role=\"decode\",worker=\"decode-0\"} 7"));
  EXPECT_THAT(text, HasSubstr("port=\"landing\",role=\"decode\",worker=\"decode-0\"} 8"));
}

TEST(RouterMetrics, ARestartIsCountedAndLeavesNoOldSeries) {
  RouterMetrics metrics("m");
  std::vector<LinkView> workers(1);
  workers[0].id.index = 0, workers[0].address = "127.0.0.1:9";
  EXPECT_THAT(metrics.Render(workers, {}), HasSubstr("role=\"unknown\",worker=\"127.0.0.1:9\"} 0"));
  workers = {Worker(0, WorkerRole::kDecode, "first life")};
  EXPECT_THAT(metrics.Render(workers, {}), Not(HasSubstr("role=\"unknown\"")));
  auto smaller = *workers[0].facts;
  smaller.kv_blocks = 7, smaller.incarnation = "second life";
  workers[0].facts = std::make_shared<const WorkerFacts>(smaller);
  workers[0].restarts = 1, workers[0].losses = 2;
  const std::string text = metrics.Render(workers, {});
  EXPECT_THAT(Line(text, "vllm:cache_config_info{"), HasSubstr("num_gpu_blocks=\"7\""));
  EXPECT_EQ(text.find("\nvllm:cache_config_info{"), text.rfind("\nvllm:cache_config_info{")) << "one, not two";
  EXPECT_THAT(Line(text, "baton_worker_restarts_total{"), HasSubstr("worker=\"decode-0\"} 1"));
  EXPECT_THAT(Line(text, "baton_worker_losses_total{"), HasSubstr("} 2"));
}

TEST(RouterMetrics, StepsHaveSizesThroughputAndRoomLeftInBlocks) {
  RouterMetrics metrics("m");
  std::vector<LinkView> workers = {Worker(0, WorkerRole::kBoth, "first life")};
  auto facts = *workers[0].facts;
  facts.tokens_per_block = 16;
  workers[0].facts = std::make_shared<const WorkerFacts>(facts);
  WorkerLoad& load = workers[0].load;
  const auto at = [&](int seconds) {
    RouterHoldings holdings;
    holdings.now = TimePoint(std::chrono::seconds(seconds));
    return metrics.Render(workers, holdings);
  };
  load.kv_blocks_used = 4, load.kv_empty_tokens = 16;
  load.prompt_tokens = 1000, load.generation_tokens = 50;
  load.step_sizes.Count(8), load.step_sizes.Count(9), load.step_sizes.Count(20'000);
  std::string text = at(100);
  EXPECT_THAT(Line(text, "vllm:avg_prompt_throughput_toks_per_s{"), HasSubstr("} 0")) << "since when is not known";
  EXPECT_THAT(Line(text, "baton_kv_waste_ratio{"), HasSubstr("} 0.25"));
  const std::string sizes =
      "vllm:iteration_tokens_total_bucket{engine=\"0\",model_name=\"m\",role=\"both\",worker=\"both-0\",le=";
  EXPECT_THAT(text, HasSubstr(sizes + "\"1\"} 0"));
  EXPECT_THAT(text, HasSubstr(sizes + "\"8\"} 1"));
  EXPECT_THAT(text, HasSubstr(sizes + "\"16384\"} 2"));
  EXPECT_THAT(text, HasSubstr(sizes + "\"+Inf\"} 3"));
  EXPECT_THAT(Line(text, "vllm:iteration_tokens_total_sum{"), HasSubstr("} 20017"));
  load.prompt_tokens = 3000, load.generation_tokens = 90;
  text = at(120);
  EXPECT_THAT(Line(text, "vllm:avg_prompt_throughput_toks_per_s{"), HasSubstr("} 100"));
  EXPECT_THAT(Line(text, "vllm:avg_generation_throughput_toks_per_s{"), HasSubstr("} 2"));
  EXPECT_THAT(text, HasSubstr(sizes + "\"+Inf\"} 3")) << "not counted twice";
  // Who else scrapes in between does not shorten the time that a rate is of.
  load.generation_tokens = 100;
  at(125);
  EXPECT_THAT(Line(at(126), "vllm:avg_generation_throughput_toks_per_s{"), HasSubstr("} 1.923")) << "50 in 26 s";
  EXPECT_THAT(Line(at(131), "vllm:avg_generation_throughput_toks_per_s{"), HasSubstr("} 0.909")) << "10 in 11 s";
  auto again = *workers[0].facts;
  again.incarnation = "second life";
  workers[0].facts = std::make_shared<const WorkerFacts>(again);
  load = {};
  load.step_sizes.Count(1);
  text = at(140);
  EXPECT_THAT(Line(text, "vllm:avg_generation_throughput_toks_per_s{"), HasSubstr("} 0"));
  EXPECT_THAT(text, HasSubstr(sizes + "\"+Inf\"} 4"));
}

TEST(RouterMetrics, OfWorkersThatWentTheSeriesOfTheLatestStay) {
  RouterMetrics metrics("m");
  const auto named = [](int i) {
    LinkView view = Worker(i % 3, WorkerRole::kDecode, "d");
    WorkerFacts facts = *view.facts;
    facts.worker_id = StrCat("pod-", i, "-");
    view.facts = std::make_shared<const WorkerFacts>(facts);
    return view;
  };
  std::string text;
  for (int i = 0; i < 80; ++i) text = metrics.Render({named(0), named(i == 0 ? 1 : i)}, {});
  const auto series_of = [&text](int i) {
    const std::string name = StrCat("worker=\"pod-", i, "-");
    int count = 0;
    for (size_t at = text.find(name); at != text.npos; at = text.find(name, at + 1)) ++count;
    return count;
  };
  EXPECT_GT(series_of(0), series_of(78)) << "it is there";
  EXPECT_GT(series_of(78), 20) << "it went last";
  EXPECT_EQ(series_of(78), series_of(79 - 64));
  EXPECT_EQ(series_of(78 - 64), 0);
  EXPECT_EQ(series_of(1), 0);
  text = metrics.Render({named(1)}, {});
  EXPECT_GT(series_of(1), 20) << "it came back";
}

TEST(RouterMetrics, TheProcessIsThereByPrometheusNames) {
  RouterMetrics metrics("m");
  const std::string text = metrics.Render({}, {});
  const auto value = [&](const char* name) { return std::stod(Line(text, name).substr(std::string(name).size())); };
  EXPECT_GT(value("process_resident_memory_bytes "), 1 << 20);
  EXPECT_GT(value("process_virtual_memory_bytes "), value("process_resident_memory_bytes "));
  EXPECT_GT(value("process_open_fds "), 2);
  EXPECT_GE(value("process_max_fds "), value("process_open_fds "));
  EXPECT_EQ(value("baton_log_lines_lost_total "), 0);
  EXPECT_LT(value("process_cpu_seconds_total "), 600);
  const double now = Seconds(std::chrono::system_clock::now().time_since_epoch());
  EXPECT_NEAR(value("process_start_time_seconds "), now, 600);
}

TEST(RouterMetrics, ARequestsLongestChoiceAndComputedPromptHaveHistograms) {
  RouterMetrics metrics("m");
  FinishedRequest done{"stop", 100, 12, 64};
  done.longest_choice_tokens = 7;
  metrics.Finished(done);
  const std::string text = metrics.Render({}, {});
  EXPECT_THAT(Line(text, "vllm:request_max_num_generation_tokens_sum{"), HasSubstr("} 7"));
  EXPECT_THAT(Line(text, "vllm:request_prefill_kv_computed_tokens_sum{"), HasSubstr("} 36"));
}

TEST(RouterMetrics, EachTimeOfARequestHasItsHistogram) {
  RouterMetrics metrics("m");
  FinishedRequest done{"stop", 100, 12, 64};
  done.e2e_s = 1, done.queue_s = 2, done.prefill_s = 4, done.decode_s = 8, done.time_per_output_token_s = 16;
  metrics.Finished(done);
  const std::string text = metrics.Render({}, {});
  EXPECT_THAT(Line(text, "vllm:e2e_request_latency_seconds_sum{"), HasSubstr("} 1"));
  EXPECT_THAT(Line(text, "vllm:request_queue_time_seconds_sum{"), HasSubstr("} 2"));
  EXPECT_THAT(Line(text, "vllm:request_prefill_time_seconds_sum{"), HasSubstr("} 4"));
  EXPECT_THAT(Line(text, "vllm:request_decode_time_seconds_sum{"), HasSubstr("} 8"));
  EXPECT_THAT(Line(text, "vllm:request_inference_time_seconds_sum{"), HasSubstr("} 12"));
  EXPECT_THAT(Line(text, "vllm:request_time_per_output_token_seconds_sum{"), HasSubstr("} 16"));
}

TEST(RouterMetrics, StagesHaveHistograms) {
  RouterMetrics metrics("m");
  FinishedRequest done{"stop", 10, 2};
  done.stages = StageTimings{0, 20, 3, 0, 1, 5};
  metrics.Finished(done);
  EXPECT_THAT(metrics.Render({}, {}), HasSubstr("baton_stage_seconds_bucket{engine=\"router\",model_name=\"m\",role="
                                                "\"router\",stage=\"transfer\",le=\"0.005\"} 1"));
}

TEST(RouterMetrics, QueuesCountByStage) {
  RouterMetrics metrics("m");
  std::vector<LinkView> workers = {Worker(0, WorkerRole::kDecode, "d"), Worker(1, WorkerRole::kPrefill, "p")};
  workers[0].load.running = 5, workers[1].load.waiting = 3, workers[1].load.handoff.slots_waiting = 7;
  const std::string text = metrics.Render(workers, {});
  EXPECT_THAT(text, HasSubstr("stage=\"decode\"} 5"));
  EXPECT_THAT(text, HasSubstr("stage=\"queue_prefill\"} 3"));
  EXPECT_THAT(text, HasSubstr("stage=\"transfer\"} 7"));
}

TEST(RouterMetrics, ManyKeysHaveTheSeriesOfAFew) {
  RouterMetrics metrics("m");
  RouterHoldings router;
  for (int i = 0; i < 1000; ++i) router.keys.push_back({StrCat("key-", i), 1, 2, 3, 0, 0});
  std::string text = metrics.Render({}, router);
  const auto count = [&](const std::string& part) {
    size_t n = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count("\nbaton_key_requests_total{"), 257u);
  EXPECT_EQ(count("key=\"(others)\""), 7u);
  EXPECT_NE(text.find(" 744\n"), std::string::npos) << "the others together";
  text = metrics.Render({}, router);
  EXPECT_EQ(count("\nbaton_key_requests_total{"), 257u);
  EXPECT_NE(text.find(" 744\n"), std::string::npos) << "a scrape changes nothing";
}

}  // namespace
}  // namespace baton::router
