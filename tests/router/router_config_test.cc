#include "router/router_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "router/fleet/report_terms.h"
#include "tests/config_edges.h"

namespace baton::router {
namespace {

using testing::HasSubstr;

RouterConfig Good() {
  RouterConfig c;
  c.model = "m";
  c.worker = {"127.0.0.1:9000", "host.name:1"};
  return c;
}

TEST(RouterConfig, TheDefaultsAreValid) {
  EXPECT_TRUE(Good().Validate().ok()) << Good().Validate();
  EXPECT_EQ(Good().port, 8000);
  EXPECT_EQ(Good().grpc_port, 8001);
  EXPECT_EQ(Good().admin_port, 8002);
}

TEST(RouterConfig, AWrongValueNamesItsFlag) {
  const std::pair<const char*, std::function<void(RouterConfig&)>> cases[] = {
      {"--model", [](RouterConfig& c) { c.model.clear(); }},
      {"--port", [](RouterConfig& c) { c.port = 65536; }},
      {"--grpc-port", [](RouterConfig& c) { c.grpc_port = -2; }},
      {"--max-json-depth", [](RouterConfig& c) { c.max_json_depth = 0; }},
      {"--max-body-bytes", [](RouterConfig& c) { c.max_body_bytes = -1; }},
      {"--retry-budget", [](RouterConfig& c) { c.retry_budget = 1.5; }},
      {"--retry-budget", [](RouterConfig& c) { c.retry_budget = 0.0 / 0.0; }},
      {"--route-policy", [](RouterConfig& c) { c.route_policy = "best"; }},
      {"--generation-config", [](RouterConfig& c) { c.generation_config = "yes"; }},
      {"--worker", [](RouterConfig& c) { c.worker = {"nohost"}; }},
      {"--worker", [](RouterConfig& c) { c.worker = {":9000"}; }},
      {"--worker", [](RouterConfig& c) { c.worker = {"a:b"}; }},
      {"--worker", [](RouterConfig& c) { c.worker = {"a:1", "a:1"}; }},
      {"--worker", [](RouterConfig& c) { c.worker = {"dns:///a:1"}; }},
      {"--worker", [](RouterConfig& c) { c.worker = {"::1:7000"}; }},
      {"at most 1024 workers", [](RouterConfig& c) { c.worker.assign(1025, "a:1"); }},
      {"--request-timeout-ms", [](RouterConfig& c) { c.request_timeout_ms = -1; }},
      {"--first-token-timeout-ms", [](RouterConfig& c) { c.first_token_timeout_ms = -1; }},
      {"--idle-token-timeout-ms", [](RouterConfig& c) { c.idle_token_timeout_ms = -1; }},
      {"--tokenizer-queue", [](RouterConfig& c) { c.tokenizer_queue = 0; }},
      {"--stream-interval", [](RouterConfig& c) { c.stream_interval = 0; }},
      {"--sse-ping-ms", [](RouterConfig& c) { c.sse_ping_ms = -1; }},
      {"--step-stall-ms", [](RouterConfig& c) { c.step_stall_ms = 0; }},
      {"--step-stall-factor", [](RouterConfig& c) { c.step_stall_factor = 0.5; }},
      {"--shutdown-timeout-ms", [](RouterConfig& c) { c.shutdown_timeout_ms = -1; }},
      {"--route-lambda", [](RouterConfig& c) { c.route_lambda = -1; }},
      {"--worker-backoff-max-ms", [](RouterConfig& c) { c.worker_backoff_max_ms = 1; }},
      {"--log-level", [](RouterConfig& c) { c.log_level = "loud"; }},
      {"--log-format", [](RouterConfig& c) { c.log_format = "xml"; }},
      {"--heartbeat-timeout-ms", [](RouterConfig& c) { c.heartbeat_timeout_ms = c.load_interval_ms; }},
  };
  for (const auto& [flag, breakage] : cases) {
    RouterConfig c = Good();
    breakage(c);
    const absl::Status status = c.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << flag;
    EXPECT_NE(status.message().find(flag), absl::string_view::npos) << status;
  }
}

template <class T>
using Edges = std::vector<test::Edge<RouterConfig, T>>;
constexpr int32_t kMost = 1 << 30, kDay = 24 * 3600 * 1000;

const Edges<int32_t> kIntegers = {
    {"port", &RouterConfig::port, {0, 65535}, {-1, 65536}},
    {"grpc-port", &RouterConfig::grpc_port, {-1, 65535}, {-2, 65536}},
    {"admin-port", &RouterConfig::admin_port, {-1, 65535}, {-2, 65536}},
    {"max-header-bytes", &RouterConfig::max_header_bytes, {1024, 1 << 20}, {1023, (1 << 20) + 1}},
    {"max-json-depth", &RouterConfig::max_json_depth, {4, 1024}, {3, 1025}},
    {"max-connections", &RouterConfig::max_connections, {1, 1 << 20}, {0, (1 << 20) + 1}},
    {"max-running-requests", &RouterConfig::max_running_requests, {1, kMost}, {0, kMost + 1}},
    {"max-choices", &RouterConfig::max_choices, {1, 65536}, {0, 65537}},
    {"max-logprobs", &RouterConfig::max_logprobs, {0, 1024}, {-1, 1025}},
    {"http-threads", &RouterConfig::http_threads, {0, 1024}, {-1, 1025}},
    {"tokenizer-threads", &RouterConfig::tokenizer_threads, {0, 1024}, {-1, 1025}},
    {"tokenizer-queue", &RouterConfig::tokenizer_queue, {1, kMost}, {0, kMost + 1}},
    {"token-cache-mib", &RouterConfig::token_cache_mib, {0, 1 << 20}, {-1, (1 << 20) + 1}},
    {"request-timeout-ms", &RouterConfig::request_timeout_ms, {0, kDay}, {-1, kDay + 1}},
    {"first-token-timeout-ms", &RouterConfig::first_token_timeout_ms, {0, kDay}, {-1, kDay + 1}},
    {"idle-token-timeout-ms", &RouterConfig::idle_token_timeout_ms, {0, kDay}, {-1, kDay + 1}},
    {"max-attempts", &RouterConfig::max_attempts, {1, 100}, {0, 101}},
    {"failover-wait-ms", &RouterConfig::failover_wait_ms, {0, kDay}, {-1, kDay + 1}},
    {"relay-credit-tokens", &RouterConfig::relay_credit_tokens, {2, 1 << 20}, {1, (1 << 20) + 1}},
    {"write-buffer-bytes", &RouterConfig::write_buffer_bytes, {1024, kMost}, {1023, kMost + 1}},
    {"stream-interval", &RouterConfig::stream_interval, {1, 1 << 20}, {0, (1 << 20) + 1}},
    {"local-prefill-max-tokens", &RouterConfig::local_prefill_max_tokens, {-1, kMost}, {-2, kMost + 1}},
    {"read-timeout-ms", &RouterConfig::read_timeout_ms, {1, kDay}, {0, kDay + 1}},
    {"write-timeout-ms", &RouterConfig::write_timeout_ms, {1, kDay}, {0, kDay + 1}},
    {"keep-alive-ms", &RouterConfig::keep_alive_ms, {1, kDay}, {0, kDay + 1}},
    {"sse-ping-ms", &RouterConfig::sse_ping_ms, {0, kDay}, {-1, kDay + 1}},
    {"worker-backoff-min-ms", &RouterConfig::worker_backoff_min_ms, {1, 2000}, {0}},
    {"worker-backoff-max-ms", &RouterConfig::worker_backoff_max_ms, {100, kDay}, {-1, 0, 99, kDay + 1}},
    {"load-interval-ms", &RouterConfig::load_interval_ms, {10, 1500}, {9, 60001}},
    {"heartbeat-timeout-ms", &RouterConfig::heartbeat_timeout_ms, {200, kDay}, {-1, 0, 199, kDay + 1}},
    {"step-stall-ms", &RouterConfig::step_stall_ms, {1, kDay}, {0, kDay + 1}},
    {"shutdown-timeout-ms", &RouterConfig::shutdown_timeout_ms, {0, kDay}, {-1, kDay + 1}},
};

const Edges<int64_t> kLongIntegers = {
    {"max-body-bytes", &RouterConfig::max_body_bytes, {1024, int64_t{1} << 32}, {1023, (int64_t{1} << 32) + 1}},
    {"max-running-tokens", &RouterConfig::max_running_tokens, {1, int64_t{1} << 50}, {0, (int64_t{1} << 50) + 1}},
    {"index-max-bytes", &RouterConfig::index_max_bytes, {0, int64_t{1} << 50}, {-1, (int64_t{1} << 50) + 1}},
};

const Edges<double> kNumbers = {
    {"route-lambda", &RouterConfig::route_lambda, {0, 1000}, {-0.1, 1000.1, 0.0 / 0.0}},
    {"retry-budget", &RouterConfig::retry_budget, {0, 1}, {-0.1, 1.1, 0.0 / 0.0}},
    {"step-stall-factor", &RouterConfig::step_stall_factor, {1, 1e6}, {0.9, 1e6 + 1, 0.0 / 0.0}},
};

const Edges<std::string> kTexts = {
    {"model", &RouterConfig::model, {"x"}, {""}},
    {"generation-config", &RouterConfig::generation_config, {"auto", "vllm", "/a"}, {"", "yes"}},
    {"scheduling-policy", &RouterConfig::scheduling_policy, {"priority", "fcfs"}, {"", "lifo"}},
    {"route-policy", &RouterConfig::route_policy, {"predicted-time", "round-robin"}, {"", "best"}},
    {"log-level", &RouterConfig::log_level, {"debug", "info", "warning", "error"}, {"", "loud"}},
    {"log-format", &RouterConfig::log_format, {"text", "json"}, {"", "xml"}},
};

TEST(RouterConfig, EveryFieldTakesItsEdgesAndRefusesWhatLiesBehindThem) {
  std::set<std::string> tested;
  test::CheckEdges(Good(), kIntegers, tested);
  test::CheckEdges(Good(), kLongIntegers, tested);
  test::CheckEdges(Good(), kNumbers, tested);
  test::CheckEdges(Good(), kTexts, tested);
  EXPECT_EQ(tested.size(), 44u);
}

TEST(RouterConfig, APauseOrASilenceFitsTheOneThatItIsMeasuredBy) {
  RouterConfig c = Good();
  c.worker_backoff_min_ms = 2001;
  EXPECT_FALSE(c.Validate().ok()) << "the longest pause is 2000 ms";
  c = Good();
  c.load_interval_ms = 1501;
  EXPECT_FALSE(c.Validate().ok()) << "a worker that reports in time is not lost";
}

TEST(ReportTerms, AQuietWorkerIsHeardFiveTimesBeforeItIsLost) {
  struct {
    int32_t interval, heartbeat, step_stall, quiet;
  } const cases[] = {{100, 3000, 30000, 600}, {100, 60000, 90000, 1000}, {100, 500, 30000, 0}, {100, 3000, 800, 160},
                     {100, 60000, 500, 0},    {1000, 3000, 30000, 0},    {20, 200, 30000, 40}, {10, kDay, kDay, 1000}};
  for (const auto& one : cases) {
    RouterConfig c = Good();
    c.load_interval_ms = one.interval, c.heartbeat_timeout_ms = one.heartbeat, c.step_stall_ms = one.step_stall;
    const ReportTerms terms = ReportTermsOf(c);
    EXPECT_EQ(terms.every, std::chrono::milliseconds(one.interval));
    EXPECT_EQ(terms.quiet, std::chrono::milliseconds(one.quiet)) << one.heartbeat << " " << one.step_stall;
    EXPECT_EQ(terms.Longest(), std::chrono::milliseconds(std::max(one.interval, one.quiet)));
  }
}

TEST(RouterConfig, ANonLoopbackBindNeedsKeysAndTlsUnlessInsecure) {
  RouterConfig c = Good();
  for (const char* host : {"0.0.0.0", "::", "10.0.0.1", "127.evil.example"}) {
    c.host = host;
    EXPECT_FALSE(c.Validate().ok()) << host;
  }
  c.host = "0.0.0.0";
  EXPECT_FALSE(c.Validate().ok());
  c.api_key = {"k"};
  EXPECT_FALSE(c.Validate().ok()) << "a key in plain text is no key";
  c.insecure_no_tls = true;
  EXPECT_TRUE(c.Validate().ok());
  c.api_key.clear();
  EXPECT_FALSE(c.Validate().ok());
  c.insecure = true;
  EXPECT_TRUE(c.Validate().ok());
}

TEST(RouterConfig, ClientsAreShownACertificateOfTheirOwnWhereOneIsGiven) {
  RouterConfig c = Good();
  EXPECT_FALSE(c.http_tls());
  c.tls_files = {"w.crt", "w.key", "w-ca.crt"};
  c.tls_client_ca = "c-ca.crt";
  EXPECT_EQ(c.client_files().paths(), (std::vector<std::string>{"w.crt", "w.key", "c-ca.crt"}));
  c.http_tls_cert = "h.crt";
  EXPECT_THAT(std::string(c.Validate().message()), HasSubstr("--http-tls-cert h.crt needs --http-tls-key"));
  c.http_tls_key = "h.key";
  EXPECT_TRUE(c.Validate().ok());
  EXPECT_EQ(c.client_files().paths(), (std::vector<std::string>{"h.crt", "h.key", "c-ca.crt"}));
  c.tls_files = {};
  EXPECT_TRUE(c.Validate().ok()) << "workers are on loopback, say";
  EXPECT_TRUE(c.http_tls());
  c.admin_without_client_cert = true;
  EXPECT_TRUE(c.Validate().ok());
  c.tls_client_ca.clear();
  EXPECT_THAT(std::string(c.Validate().message()), HasSubstr("--admin-without-client-cert says where --tls-client-ca"));
  c.admin_without_client_cert = false;
  c.insecure_no_tls = true;
  EXPECT_THAT(std::string(c.Validate().message()), HasSubstr("keeps HTTP in plain text"));
}

TEST(RouterConfig, EveryFieldIsNamedOnce) {
  RouterConfig c;
  std::set<std::string> names;
  VisitFields(c, [&](std::string_view name, auto&, std::string_view, std::string_view help, const FieldRule& = {}) {
    EXPECT_TRUE(names.insert(std::string(name)).second) << name;
    EXPECT_FALSE(help.empty()) << name;
  });
  EXPECT_GT(names.size(), 40u);
}

}  // namespace
}  // namespace baton::router
