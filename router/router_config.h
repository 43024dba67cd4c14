// RouterConfig: everything an operator can set on a router. One struct; VisitFields names each field once, with
// what it may be, which gives flags, environment, YAML, --help and the checks (common/config_fields.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/config_fields.h"
#include "common/tls/tls_files.h"

namespace baton::router {

struct RouterConfig {
  // ---- where to listen
  std::string host = "127.0.0.1";
  int32_t port = 8000;
  int32_t grpc_port = 8001;
  int32_t admin_port = 8002;
  bool insecure = false;
  bool insecure_no_tls = false;

  // ---- TLS
  tls::TlsFiles tls_files;
  std::string http_tls_cert, http_tls_key;
  std::string tls_client_ca;
  bool admin_without_client_cert = false;
  std::string tls_server_name = "baton-worker";
  std::string cluster_secret_file;

  // ---- model and workers
  std::string model;
  std::vector<std::string> served_model_name;
  std::vector<std::string> worker;
  std::string workers_file;
  std::vector<std::string> workers_dns;
  int32_t workers_dns_interval_ms = 5000;
  std::string dns_server;
  std::vector<std::string> workers_kubernetes;
  std::string kubernetes_api;
  std::string kubernetes_token_file = "/var/run/secrets/kubernetes.io/serviceaccount/token";
  std::string kubernetes_ca_file = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";
  std::string tokenizer;
  bool skip_tokenizer_init = false;
  std::string hf_config_path;
  std::string chat_template;
  std::string tool_call_parser = "auto";
  std::string reasoning_parser = "auto";
  std::string generation_config = "auto";
  std::string override_generation_config;
  std::string default_chat_template_kwargs;
  std::string hash_key_file;

  // ---- access
  std::vector<std::string> api_key;
  std::string api_key_file;
  bool share_prefix_cache = false;
  std::string allowed_origins = "local";
  std::string allowed_hosts;
  bool public_metrics = false;

  // ---- limits, checked before anything is allocated
  int32_t max_header_bytes = 16 << 10;
  int64_t max_body_bytes = 8 << 20;
  int32_t max_json_depth = 64;
  int32_t max_connections = 16384;
  int32_t max_connections_per_address = 0;
  int32_t max_new_grpc_connections = 100;
  int32_t max_running_requests = 1024;
  int64_t max_running_tokens = 16 << 20;
  int32_t max_choices = 128;
  int32_t max_logprobs = 20;
  bool enable_force_include_usage = false;

  // ---- threads
  int32_t http_threads = 0;
  int32_t tokenizer_threads = 0;
  int32_t tokenizer_queue = 256;
  int32_t token_cache_mib = 64;

  // ---- choosing a worker
  std::string route_policy = "predicted-time";
  std::string scheduling_policy = "priority";
  double route_lambda = 5.0;
  int64_t index_max_bytes = 64 << 20;

  // ---- life of a request
  int32_t request_timeout_ms = 0;
  int32_t max_predicted_ttft_ms = 0;
  int32_t first_token_timeout_ms = 0;
  int32_t idle_token_timeout_ms = 300000;
  int32_t max_attempts = 3;
  bool require_identical_failover = false;
  double retry_budget = 0.2;
  int32_t local_prefill_max_tokens = -1;
  int32_t failover_wait_ms = 10000;
  int32_t relay_credit_tokens = 512;
  int32_t write_buffer_bytes = 256 << 10;
  int32_t stream_interval = 1;

  // ---- connections
  int32_t read_timeout_ms = 30000;
  int32_t write_timeout_ms = 60000;
  int32_t keep_alive_ms = 120000;
  int32_t sse_ping_ms = 15000;
  int32_t worker_backoff_min_ms = 100;
  int32_t worker_backoff_max_ms = 2000;
  bool canaries = true;
  int32_t load_interval_ms = 100;
  int32_t heartbeat_timeout_ms = 3000;
  int32_t step_stall_ms = 30000;
  double step_stall_factor = 20;

  // ---- shutdown and logs
  int32_t shutdown_timeout_ms = 30000;
  bool log_requests = true;
  std::string otlp_traces_endpoint;
  std::string otlp_traces_ca;
  double otlp_sample_ratio = 1;
  std::string log_level = "info";
  std::string log_format = "text";

  /// What clients are shown, and whom of them it believes: --http-tls-cert and its key, else --tls-cert.
  tls::TlsFiles client_files() const;
  /// Whether the HTTP and admin ports speak TLS.
  bool http_tls() const { return !client_files().cert.empty() && !insecure_no_tls; }
  /// InvalidArgument naming the flag, its value and what it may be.
  absl::Status Validate() const;
};

inline constexpr double kLongestWaitMs = 24 * 3600 * 1000;

/// What --route-policy may be (router/policy/policies.h).
FieldRule RoutePolicyRule();
/// What --tool-call-parser may be (router/dialect/call_form.h).
FieldRule ToolCallParserRule();
/// What --generation-config may be.
FieldRule GenerationConfigRule();

template <class Visitor>
void VisitTlsFields(RouterConfig& c, Visitor&& field) {
  field("insecure", c.insecure, "", "allow a non-loopback bind without API key and TLS");
  field(
      "insecure-no-tls", c.insecure_no_tls, "",
      "HTTP and admin in plain text, behind a proxy: also on a non-loopback bind with API key, and beside --tls-cert");
  tls::VisitFields(c.tls_files, field);
  field("http-tls-cert", c.http_tls_cert, "",
        "the certificate that clients of HTTP, gRPC and admin are shown, PEM; default: --tls-cert");
  field("http-tls-key", c.http_tls_key, "", "its key, PEM");
  field("tls-client-ca", c.tls_client_ca, "",
        "authorities, PEM: clients of HTTP, gRPC and admin must show a certificate of one of them");
  field("admin-without-client-cert", c.admin_without_client_cert, "",
        "with --tls-client-ca: admin asks for no certificate, for probes and Prometheus that have none; keys hold");
  field("tls-server-name", c.tls_server_name, "",
        "a worker dialled by IP address proves this name, or the address; one dialled by name proves that name");
  field("cluster-secret-file", c.cluster_secret_file, "",
        "what the processes of one cluster prove to each other that they know: 32 to 4096 bytes, not readable by all");
}

/// The flags of router/discovery/: name, field, unit, help (common/config_fields.h).
template <class Visitor>
void VisitDiscovery(RouterConfig& c, Visitor& field) {
  field("worker", c.worker, "", "workers to dial, HOST:PORT (repeatable)");
  field("workers-file", c.workers_file, "", "file with a worker a line, watched: HOST:PORT, or HOST:PORT draining");
  field("workers-dns", c.workers_dns, "",
        "workers behind a DNS name: NAME:PORT by A and AAAA, NAME by SRV; asked for again and again (repeatable)");
  field("workers-dns-interval-ms", c.workers_dns_interval_ms, "ms", "between two rounds of questions",
        Range(100, kLongestWaitMs));
  field("dns-server", c.dns_server, "", "IP:PORT to ask; default: the system's");
  field("workers-kubernetes", c.workers_kubernetes, "",
        "workers of a service, by its EndpointSlices: NAMESPACE/SERVICE[:PORTNAME], the port named grpc (repeatable)");
  field("kubernetes-api", c.kubernetes_api, "", "https://HOST[:PORT] of the API server; default: the pod's");
  field("kubernetes-token-file", c.kubernetes_token_file, "", "read again for each request; empty: no token");
  field("kubernetes-ca-file", c.kubernetes_ca_file, "",
        "whom the API server's certificate is from; empty: the system's");
}

template <class Visitor>
void VisitAccessFields(RouterConfig& c, Visitor& field) {
  field("host", c.host, "", "address that HTTP and gRPC bind");
  field("port", c.port, "port", "HTTP; 0 = any free port (printed)", Range(0, 65535));
  field("grpc-port", c.grpc_port, "port", "gRPC (--port + 1); 0 = any free port, -1 = no gRPC", Range(-1, 65535));
  field("admin-port", c.admin_port, "port",
        "operators' HTTP (--port + 2): console, metrics, workers; 0 = any free port, -1 = none", Range(-1, 65535));
  VisitTlsFields(c, field);
  field("model", c.model, "", "HF directory or .gguf; tokenizer, template and defaults come from it",
        NotEmpty("an HF directory or a .gguf file"));
  field("served-model-name", c.served_model_name, "", "names clients use (repeatable; the model's base name)");
  VisitDiscovery(c, field);
  field("tokenizer", c.tokenizer, "", "HF directory or .gguf file with tokenizer and chat template (--model's own)");
  field("skip-tokenizer-init", c.skip_tokenizer_init, "",
        "read no tokenizer: requests and answers are token ids; fields of text are 400");
  field("hf-config-path", c.hf_config_path, "",
        "HF directory whose generation_config.json is read in place of the model's");
  field("chat-template", c.chat_template, "", "file with a Jinja chat template, or its text (the model's)");
  field("tool-call-parser", c.tool_call_parser, "", "how the model writes calls of functions", ToolCallParserRule());
  field("reasoning-parser", c.reasoning_parser, "", "how the model writes thoughts before its answer",
        OneOf({{"auto", "as the chat template shows it"},
               {"none", "not at all"},
               {"qwen3", "between <think> and </think>, if any"},
               {"deepseek_r1", "up to </think>, whether <think> stands before them or not"}}));
  field("generation-config", c.generation_config, "", "defaults of sampling", GenerationConfigRule());
  field("override-generation-config", c.override_generation_config, "",
        "a JSON object of generation_config.json's keys, over those: '{\"temperature\": 0.5}'");
  field("default-chat-template-kwargs", c.default_chat_template_kwargs, "",
        "a JSON object of the chat template's variables where a request does not say: '{\"enable_thinking\": false}'");
  field("hash-key-file", c.hash_key_file, "",
        "64 hex digits keying prefix hashes; else the cluster secret does; with neither, several routers need it");
  field("api-key", c.api_key, "", "accepted bearer tokens; none = open (repeatable)");
  field(
      "api-key-file", c.api_key_file, "",
      "one key a line, then name=NAME, requests-per-minute=N, tokens-per-minute=N, priority=N as wished; '#' starts a "
      "comment");
  field("share-prefix-cache", c.share_prefix_cache, "",
        "requests with different API keys reuse each other's KV; a client can then learn what others have sent");
  field("allowed-origins", c.allowed_origins, "",
        "web pages that may ask, separated by commas: \"local\" for those of this machine, origins such as "
        "https://ui.example, * for any; empty = this server's own only");
  field("allowed-hosts", c.allowed_hosts, "",
        "names that clients may know this server by, separated by commas, beside IP addresses and localhost; * = any; "
        "empty = not checked off loopback");
  field("public-metrics", c.public_metrics, "", "/metrics on --port too on a non-loopback bind");
}

template <class Visitor>
void VisitLimitFields(RouterConfig& c, Visitor& field) {
  field("max-header-bytes", c.max_header_bytes, "bytes", "more is 431", Range(1024, 1 << 20));
  field("max-body-bytes", c.max_body_bytes, "bytes", "more is 413", Range(1024, int64_t{1} << 32));
  field("max-json-depth", c.max_json_depth, "", "more is 400", Range(4, 1024));
  field(
      "max-connections", c.max_connections, "",
      "connections open at once on each port, HTTP, gRPC and admin; at more the oldest that asks nothing is closed, or "
      "the new one where all are answered; fewer where the limit of open files (ulimit -n) is too low",
      Range(1, 1 << 20));
  field(
      "max-connections-per-address", c.max_connections_per_address, "",
      "of these from one client address (IPv6: one /64); 0 = half of them and no more than are free, and no limit for "
      "127.0.0.1 and ::1",
      Range(0, 1 << 20));
  field(
      "max-new-grpc-connections", c.max_new_grpc_connections, "a second",
      "new connections on the gRPC port from one client address (IPv6: one /64), half of it at once that ask nothing; "
      "0 = no limit; none for 127.0.0.1 and ::1 unless --max-connections-per-address is given",
      Range(0, 1 << 20));
  field("max-running-requests", c.max_running_requests, "",
        "requests in the router at once; more, or 7/8 of it of one of several API keys, is 429", Range(1, 1 << 30));
  field("max-running-tokens", c.max_running_tokens, "tokens",
        "prompt tokens of all requests in the router; more, or 7/8 of it of one of several API keys, is 429",
        Range(1, int64_t{1} << 50));
  field("max-choices", c.max_choices, "", "n times prompts in one request", Range(1, 65536));
  field("max-logprobs", c.max_logprobs, "", "top_logprobs and prompt_logprobs a request may ask for", Range(0, 1024));
  field("enable-force-include-usage", c.enable_force_include_usage, "",
        "streamed chats and completions end with their usage, as if `stream_options.include_usage` asked for it");
  field("http-threads", c.http_threads, "threads", "io threads (0 = cores)", Range(0, 1024));
  field("tokenizer-threads", c.tokenizer_threads, "threads", "text pool for inputs > 4 KB (0 = cores / 2, at least 1)",
        Range(0, 1024));
  field("tokenizer-queue", c.tokenizer_queue, "",
        "texts waiting for the pool; more, or half of it of one API key, is 429", Range(1, 1 << 30));
  field("token-cache-mib", c.token_cache_mib, "MiB",
        "token ids of chat turns and prompts seen before, a third of it for whole chats and requests that come again "
        "(0 = none kept)",
        Range(0, 1 << 20));
}

template <class Visitor>
void VisitRequestFields(RouterConfig& c, Visitor& field) {
  field("route-policy", c.route_policy, "", "how a worker is chosen", RoutePolicyRule());
  field("scheduling-policy", c.scheduling_policy, "", "what is served first",
        OneOf({{"priority", "the lower priority of a request or key, then who came first"},
               {"fcfs", "who came first; priorities say nothing"}}));
  field("route-lambda", c.route_lambda, "", "weight of the work a request brings to those behind it", Range(0, 1000));
  field("index-max-bytes", c.index_max_bytes, "bytes", "memory of the prefix index; least recently used goes first",
        Range(0, int64_t{1} << 50));
  field("request-timeout-ms", c.request_timeout_ms, "ms", "total time of a request (0 = none)",
        Range(0, kLongestWaitMs));
  field("max-predicted-ttft-ms", c.max_predicted_ttft_ms, "ms",
        "a request whose first token is predicted to come later is 429 at once, with that number (0 = none is)",
        Range(0, kLongestWaitMs));
  field("first-token-timeout-ms", c.first_token_timeout_ms, "ms", "from arrival to the first token (0 = none)",
        Range(0, kLongestWaitMs));
  field("idle-token-timeout-ms", c.idle_token_timeout_ms, "ms", "between two tokens of a running request (0 = none)",
        Range(0, kLongestWaitMs));
  field("max-attempts", c.max_attempts, "", "workers tried for a request, retries and migrations together",
        Range(1, 100));
  field("require-identical-failover", c.require_identical_failover, "",
        "one answer is the work of workers of one numerics id only, whoever is lost: its bits never depend on that");
  field("retry-budget", c.retry_budget, "",
        "prompts computed a second time at once, per live request (at least 3); the others wait their turn",
        Range(0, 1));
  field(
      "local-prefill-max-tokens", c.local_prefill_max_tokens, "tokens",
      "uncached prompt tokens that a decode worker computes itself; -1 = as many as take no longer than a handoff, by "
      "measured rates, at most 64",
      Range(-1, 1 << 30));
  field("failover-wait-ms", c.failover_wait_ms, "ms",
        "when no worker is left, wait this long for one that was lost to come back (0 = fail at once)",
        Range(0, kLongestWaitMs));
  field("relay-credit-tokens", c.relay_credit_tokens, "tokens", "tokens a worker may run ahead of a client, per choice",
        Range(2, 1 << 20));
  field("write-buffer-bytes", c.write_buffer_bytes, "bytes", "unsent answer bytes before credit is withheld",
        Range(1024, 1 << 30));
  field("stream-interval", c.stream_interval, "", "tokens gathered per streamed chunk", Range(1, 1 << 20));
}

template <class Visitor>
void VisitConnectionFields(RouterConfig& c, Visitor& field) {
  field("read-timeout-ms", c.read_timeout_ms, "ms",
        "for the rest of a request that has begun to arrive, and for the first byte of a connection",
        Range(1, kLongestWaitMs));
  field("write-timeout-ms", c.write_timeout_ms, "ms",
        "a client that takes no byte this long is dropped, or less than 16 KiB/s of a complete answer in the mean",
        Range(1, kLongestWaitMs));
  field("keep-alive-ms", c.keep_alive_ms, "ms",
        "an idle connection, or one of gRPC without a call, is closed after this", Range(1, kLongestWaitMs));
  field("sse-ping-ms", c.sse_ping_ms, "ms", "comment line on a silent stream (0 = none)", Range(0, kLongestWaitMs));
  field("worker-backoff-min-ms", c.worker_backoff_min_ms, "ms", "first pause before dialling a worker again",
        Range(1, kLongestWaitMs));
  field("worker-backoff-max-ms", c.worker_backoff_max_ms, "ms", "longest pause", Range(1, kLongestWaitMs));
  field("canaries", c.canaries, "", "a worker takes requests when a tiny one of the router's own went through it");
  field("load-interval-ms", c.load_interval_ms, "ms",
        "workers report load at least this often; while it says nothing new, each fifth of --heartbeat-timeout-ms, and "
        "each second",
        Range(10, 60000));
  field("heartbeat-timeout-ms", c.heartbeat_timeout_ms, "ms",
        "no report for this long: the worker is lost; ten times as long where what it says lies unread here",
        Range(20, kLongestWaitMs));
  field("step-stall-ms", c.step_stall_ms, "ms", "running work, but no step for this long: the worker is lost",
        Range(1, kLongestWaitMs));
  field("step-stall-factor", c.step_stall_factor, "", "… and for this many predicted steps", Range(1, 1e6));
}

/// The flags: name, field, unit, help, what it may be (common/config_fields.h).
template <class Visitor>
void VisitFields(RouterConfig& c, Visitor&& field) {
  VisitAccessFields(c, field);
  VisitLimitFields(c, field);
  VisitRequestFields(c, field);
  VisitConnectionFields(c, field);
  field("shutdown-timeout-ms", c.shutdown_timeout_ms, "ms", "how long a drain waits for running requests",
        Range(0, kLongestWaitMs));
  field("log-requests", c.log_requests, "", "one line per request, without its text");
  field("otlp-traces-endpoint", c.otlp_traces_endpoint, "url",
        "a collector that every request's spans are posted to (OTLP over HTTP in JSON; without a path, /v1/traces)");
  field("otlp-traces-ca", c.otlp_traces_ca, "file",
        "authorities of an https:// collector's certificate, PEM (default: the system's)");
  field("otlp-sample-ratio", c.otlp_sample_ratio, "",
        "of the requests without a `traceparent` header, whose sampled flag else decides", Range(0, 1));
  field("log-level", c.log_level, "", "the least that is written", LogLevelRule());
  field("log-format", c.log_format, "", "of a log line", LogFormatRule());
}

}  // namespace baton::router
