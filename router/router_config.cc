#include "router/router_config.h"

#include <algorithm>

#include "common/config_fields.h"
#include "common/net/address.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "router/discovery/discovery.h"

namespace baton::router {
namespace {

template <class T>
struct Bound {
  const char* flag;
  T value, low, high;
};

template <class T>
absl::Status Check(std::initializer_list<Bound<T>> bounds) {
  for (const auto& [flag, value, low, high] : bounds) {
    if (!(value >= low && value <= high)) {
      return absl::InvalidArgumentError(StrCat("--", flag, " ", value, ": must be from ", low, " to ", high));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNumbers(const RouterConfig& c) {
  constexpr int32_t kMost = 1 << 30, kDay = 24 * 3600 * 1000;
  BATON_RETURN_IF_ERROR(Check<int32_t>({{"port", c.port, 0, 65535},
                                        {"grpc-port", c.grpc_port, -1, 65535},
                                        {"admin-port", c.admin_port, -1, 65535},
                                        {"max-header-bytes", c.max_header_bytes, 1024, 1 << 20},
                                        {"max-json-depth", c.max_json_depth, 4, 1024},
                                        {"max-connections", c.max_connections, 1, 1 << 20},
                                        {"max-running-requests", c.max_running_requests, 1, kMost},
                                        {"max-choices", c.max_choices, 1, 65536},
                                        {"max-logprobs", c.max_logprobs, 0, 1024},
                                        {"http-threads", c.http_threads, 0, 1024},
                                        {"tokenizer-threads", c.tokenizer_threads, 0, 1024},
                                        {"tokenizer-queue", c.tokenizer_queue, 1, kMost},
                                        {"token-cache-mib", c.token_cache_mib, 0, 1 << 20},
                                        {"request-timeout-ms", c.request_timeout_ms, 0, kDay},
                                        {"first-token-timeout-ms", c.first_token_timeout_ms, 0, kDay},
                                        {"idle-token-timeout-ms", c.idle_token_timeout_ms, 0, kDay},
                                        {"max-attempts", c.max_attempts, 1, 100},
                                        {"failover-wait-ms", c.failover_wait_ms, 0, kDay},
                                        {"relay-credit-tokens", c.relay_credit_tokens, 2, 1 << 20},
                                        {"write-buffer-bytes", c.write_buffer_bytes, 1024, kMost},
                                        {"stream-interval", c.stream_interval, 1, 1 << 20},
                                        {"local-prefill-max-tokens", c.local_prefill_max_tokens, -1, 1 << 30}}));
  BATON_RETURN_IF_ERROR(
      Check<int32_t>({{"read-timeout-ms", c.read_timeout_ms, 1, kDay},
                      {"write-timeout-ms", c.write_timeout_ms, 1, kDay},
                      {"keep-alive-ms", c.keep_alive_ms, 1, kDay},
                      {"sse-ping-ms", c.sse_ping_ms, 0, kDay},
                      {"worker-backoff-min-ms", c.worker_backoff_min_ms, 1, kDay},
                      {"worker-backoff-max-ms", c.worker_backoff_max_ms, c.worker_backoff_min_ms, kDay},
                      {"load-interval-ms", c.load_interval_ms, 10, 60000},
                      {"heartbeat-timeout-ms", c.heartbeat_timeout_ms, 2 * c.load_interval_ms, kDay},
                      {"step-stall-ms", c.step_stall_ms, 1, kDay},
                      {"workers-dns-interval-ms", c.workers_dns_interval_ms, 100, kDay},
                      {"shutdown-timeout-ms", c.shutdown_timeout_ms, 0, kDay}}));
  BATON_RETURN_IF_ERROR(Check<int64_t>({{"max-body-bytes", c.max_body_bytes, 1024, int64_t{1} << 32},
                                        {"max-running-tokens", c.max_running_tokens, 1, int64_t{1} << 50},
                                        {"index-max-bytes", c.index_max_bytes, 0, int64_t{1} << 50}}));
  return Check<double>({{"route-lambda", c.route_lambda, 0, 1000},
                        {"retry-budget", c.retry_budget, 0, 1},
                        {"step-stall-factor", c.step_stall_factor, 1, 1e6}});
}

absl::Status CheckWorkers(const std::vector<std::string>& workers) {
  if (workers.size() > 64) {
    return absl::InvalidArgumentError(
        StrCat("--worker is given ", workers.size(), " times, at most 64 workers are possible"));
  }
  for (size_t i = 0; i < workers.size(); ++i) {
    const std::string& worker = workers[i];
    if (const auto address = net::ParseHostPort(worker); !address.ok())
      return absl::InvalidArgumentError(StrCat("--worker ", worker, ": ", address.status().message()));
    if (std::find(workers.begin(), workers.begin() + static_cast<ptrdiff_t>(i), worker) !=
        workers.begin() + static_cast<ptrdiff_t>(i)) {
      return absl::InvalidArgumentError(StrCat("--worker ", worker, " is given twice"));
    }
  }
  return absl::OkStatus();
}

// Nothing that others can reach without a key and an encrypted connection, unless the operator says so.
absl::Status CheckBind(const RouterConfig& c) {
  if (net::IsLoopback(c.host) || c.insecure) return absl::OkStatus();
  const bool keys = !c.api_key.empty() || !c.api_key_file.empty();
  if (keys && c.insecure_no_tls) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("--host ", c.host, " can be reached from other machines: that needs ",
                                           keys ? "" : "--api-key or --api-key-file, and ",
                                           "TLS, which a proxy in front can do (--insecure-no-tls allows plain text "
                                           "behind it; --insecure allows everyone)"));
}

}  // namespace

absl::Status RouterConfig::Validate() const {
  if (model.empty()) return absl::InvalidArgumentError("--model is required: an HF directory or a .gguf file");
  if (generation_config != "auto" && generation_config != "vllm") {
    return absl::InvalidArgumentError(StrCat("--generation-config ", generation_config, ": must be auto or vllm"));
  }
  if (route_policy != "predicted-time" && route_policy != "round-robin") {
    return absl::InvalidArgumentError(
        StrCat("--route-policy ", route_policy, ": must be predicted-time or round-robin"));
  }
  if (!IsLogLevel(log_level))
    return absl::InvalidArgumentError(StrCat("--log-level ", log_level, ": must be debug, info, warning or error"));
  if (!IsLogFormat(log_format))
    return absl::InvalidArgumentError(StrCat("--log-format ", log_format, ": must be text or json"));
  BATON_RETURN_IF_ERROR(CheckNumbers(*this));
  BATON_RETURN_IF_ERROR(CheckWorkers(worker));
  BATON_RETURN_IF_ERROR(CheckDiscovery(*this));
  return CheckBind(*this);
}

}  // namespace baton::router
