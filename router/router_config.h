// RouterConfig: everything an operator can set on a router. One struct, each field declared once; the comment of a field is
// `--flag` (default, unit): help. The same name with underscores is the environment variable (BATON_ROUTER_…) and YAML key.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace baton::router {

struct RouterConfig {
  // ---- where to listen
  std::string host = "127.0.0.1";        ///< --host: address that HTTP and gRPC bind
  int32_t port = 8000;                   ///< --port: HTTP; 0 = any free port (printed)
  int32_t grpc_port = 8001;              ///< --grpc-port: gRPC; 0 = any free port, -1 = no gRPC
  bool insecure = false;                 ///< --insecure: allow a non-loopback bind without API key and TLS
  bool insecure_no_tls = false;          ///< --insecure-no-tls: allow a non-loopback bind with API key but without TLS

  // ---- model and workers
  std::string model;                     ///< --model: HF directory or .gguf; tokenizer, template and defaults come from it
  std::vector<std::string> served_model_name;  ///< --served-model-name (repeatable; the model's base name): names clients use
  std::vector<std::string> worker;       ///< --worker HOST:PORT (repeatable, ≤ 64): workers to dial
  std::string chat_template;             ///< --chat-template (the model's): file with a Jinja chat template
  std::string generation_config = "auto";  ///< --generation-config: auto = defaults of the model's generation_config.json,
                                           ///< vllm = neutral defaults
  std::string hash_key_file;             ///< --hash-key-file: 32 bytes keying prefix hashes; needed with several routers

  // ---- access
  std::vector<std::string> api_key;      ///< --api-key (repeatable): accepted bearer tokens; none = open
  std::string api_key_file;              ///< --api-key-file: one key a line, '#' starts a comment
  std::string allowed_origins = "*";     ///< --allowed-origins: Access-Control-Allow-Origin; empty = no CORS headers

  // ---- limits, checked before anything is allocated
  int32_t max_header_bytes = 16 << 10;   ///< --max-header-bytes: more is 431
  int64_t max_body_bytes = 8 << 20;      ///< --max-body-bytes: more is 413
  int32_t max_json_depth = 64;           ///< --max-json-depth: more is 400
  int32_t max_connections = 20000;       ///< --max-connections: HTTP connections open at once; more are closed
  int32_t max_running_requests = 1024;   ///< --max-running-requests: requests in the router at once; more is 429
  int64_t max_running_tokens = 16 << 20; ///< --max-running-tokens: prompt tokens of all requests in the router; more is 429
  int32_t max_choices = 128;             ///< --max-choices: n times prompts in one request
  int32_t max_logprobs = 20;             ///< --max-logprobs: top_logprobs and prompt_logprobs a request may ask for

  // ---- threads
  int32_t http_threads = 0;              ///< --http-threads (0 = cores): io threads
  int32_t tokenizer_threads = 0;         ///< --tokenizer-threads (0 = cores / 2, at least 1): text pool for inputs > 4 KB
  int32_t tokenizer_queue = 256;         ///< --tokenizer-queue: texts waiting for the pool; more is 429

  // ---- choosing a worker
  std::string route_policy = "predicted-time";  ///< --route-policy: predicted-time | round-robin
  double route_lambda = 1.0;             ///< --route-lambda: weight of the work a request brings to those behind it
  int64_t index_max_bytes = 64 << 20;    ///< --index-max-bytes: memory of the prefix index; least recently used goes first

  // ---- life of a request
  int32_t request_timeout_ms = 0;        ///< --request-timeout-ms (0 = none): total time of a request
  int32_t first_token_timeout_ms = 0;    ///< --first-token-timeout-ms (0 = none): from arrival to the first token
  int32_t idle_token_timeout_ms = 300000;  ///< --idle-token-timeout-ms (0 = none): between two tokens of a running request
  int32_t max_attempts = 3;              ///< --max-attempts: workers tried for a request, retries and migrations together
  double retry_budget = 0.2;             ///< --retry-budget: retries and migrations per live request (at least 3 at once)
  int32_t failover_wait_ms = 0;          ///< --failover-wait-ms: wait this long for another worker after losing one
  int32_t relay_credit_tokens = 512;     ///< --relay-credit-tokens: tokens a worker may run ahead of a client, per choice
  int32_t write_buffer_bytes = 256 << 10;  ///< --write-buffer-bytes: unsent answer bytes before credit is withheld
  int32_t stream_interval = 1;           ///< --stream-interval: tokens gathered per streamed chunk

  // ---- connections
  int32_t read_timeout_ms = 30000;       ///< --read-timeout-ms: for the rest of a request that has begun to arrive
  int32_t write_timeout_ms = 60000;      ///< --write-timeout-ms: a client that takes no byte this long is dropped
  int32_t keep_alive_ms = 120000;        ///< --keep-alive-ms: an idle connection is closed after this
  int32_t sse_ping_ms = 15000;           ///< --sse-ping-ms: comment line on a silent stream (0 = none)
  int32_t worker_backoff_min_ms = 100;   ///< --worker-backoff-min-ms: first pause before dialling a worker again
  int32_t worker_backoff_max_ms = 2000;  ///< --worker-backoff-max-ms: longest pause
  int32_t load_interval_ms = 100;        ///< --load-interval-ms: workers report load at least this often
  int32_t heartbeat_timeout_ms = 5000;   ///< --heartbeat-timeout-ms: no report for this long: the worker is lost
  int32_t step_stall_ms = 30000;         ///< --step-stall-ms: running work, but no step for this long: the worker is lost
  double step_stall_factor = 20;         ///< --step-stall-factor: … and for this many predicted steps

  // ---- shutdown and logs
  int32_t shutdown_timeout_ms = 30000;   ///< --shutdown-timeout-ms: how long a drain waits for running requests
  bool log_requests = true;              ///< --no-log-requests: one line per request, without its text

  /// InvalidArgument naming the flag, its value and what it may be.
  absl::Status Validate() const;
};

/// Whether `host` is only reachable from this machine: 127.0.0.0/8, ::1, localhost.
bool IsLoopback(const std::string& host);

}  // namespace baton::router
