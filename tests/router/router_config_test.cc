#include "router/router_config.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

namespace baton::router {
namespace {

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
      {"64 workers", [](RouterConfig& c) { c.worker.assign(65, "a:1"); }},
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

TEST(RouterConfig, EveryFieldIsNamedOnce) {
  RouterConfig c;
  std::set<std::string> names;
  VisitFields(c, [&](std::string_view name, auto&, std::string_view, std::string_view help) {
    EXPECT_TRUE(names.insert(std::string(name)).second) << name;
    EXPECT_FALSE(help.empty()) << name;
  });
  EXPECT_GT(names.size(), 40u);
}

}  // namespace
}  // namespace baton::router
