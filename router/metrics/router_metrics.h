// RouterMetrics: Prometheus text. vLLM's metric names and buckets, so that existing boards and autoscalers work, and
// Baton's own beside them as baton_*. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "router/fleet/worker_link.h"
#include "router/request_types.h"
#include "text/token_cache.h"

namespace baton::tls {
class LiveIdentity;
class Refusals;
}  // namespace baton::tls

namespace baton::router {

class SpanExporter;

/// One request at its end.
struct FinishedRequest {
  std::string finished_reason;  ///< "stop", "length", "abort", "error"
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0, predicted_cached_tokens = 0;
  int64_t max_tokens = 0, n = 1;
  double e2e_s = 0;
  double queue_s = -1, prefill_s = -1, decode_s = -1;  ///< -1: not known
  double time_per_output_token_s = -1;
  int64_t retries = 0, migrations = 0;
  int64_t thought_tokens = 0;         ///< of completion_tokens
  int64_t longest_choice_tokens = 0;  ///< completion tokens of the longest of n
  std::optional<StageTimings> stages;
};

/// Grammars that requests asked for, since the start.
struct GrammarCounts {
  int64_t known = 0, compiled = 0, refused = 0;  ///< seen before; new; new, but nothing can follow them
  double compile_s = 0;
};

/// What a named API key has used, how often it was refused by which limit of its own, and what it had to leave to
/// others.
struct KeyUse {
  std::string name;
  int64_t requests = 0, prompt_tokens = 0, completion_tokens = 0, refused_for_requests = 0, refused_for_tokens = 0;
  int64_t refused_for_share = 0, ended_unread = 0;
};

/// The router's gauges at the moment of a scrape.
struct RouterHoldings {
  TimePoint now{};
  int64_t running_requests = 0;
  int64_t recomputing_requests = 0;  ///< that hold a share of the retry budget
  int64_t index_units = 0, index_bytes = 0;
  size_t texts_queued = 0;
  TokenCache::Counts token_cache;
  GrammarCounts grammars{};
  std::vector<KeyUse> keys;
};

class RouterMetrics {
 public:
  explicit RouterMetrics(const std::string& model_name);
  ~RouterMetrics();

  void FirstToken(double seconds);
  void InterToken(double seconds);
  void Finished(const FinishedRequest& request);
  void HttpDone(const std::string& handler, const std::string& method, int status, double seconds);
  void Refused(const std::string& reason);
  /// Of a client, by us. `port`: "http", "admin".
  void ConnectionClosed(const std::string& port, const std::string& reason);

  /// From now on the exposition has the expiry of the certificate that `flag` gave, and the connections refused. Both
  /// outlive every Render.
  void ShowTls(const char* flag, const tls::LiveIdentity& identity, const tls::Refusals& refusals);

  /// From now on the exposition has the spans sent. `traces` outlives every Render.
  void ShowTraces(const SpanExporter& traces);

  /// The whole exposition; workers' figures come from `workers`.
  std::string Render(const std::vector<LinkView>& workers, const RouterHoldings& router);

 private:
  struct Families;
  std::unique_ptr<Families> f_;
};

}  // namespace baton::router
