// The series of RouterMetrics. Only router_metrics.cc and worker_series.cc include this.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/tls/live_identity.h"
#include "common/tls/refusals.h"
#include "router/metrics/router_metrics.h"
#include "router/telemetry/span_exporter.h"

namespace baton::router {
namespace prom = prometheus;
using Buckets = prom::Histogram::BucketBoundaries;

inline const Buckets kFirstTokenBuckets = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                           1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
// vLLM's, and three below for small models: a superset keeps its queries valid.
inline const Buckets kTokenBuckets = {.001, .002, .005, .01, .025, .05, .075, .1, .15, .2, .3,
                                      .4,   .5,   .75,  1,   2.5,  5,   7.5,  10, 20,  40, 80};
inline const Buckets kRequestBuckets = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                        30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
inline const Buckets kStageBuckets = {.0001, .0002, .0005, .001, .002, .005, .01, .02, .05,
                                      .1,    .2,    .5,    1,    2,    5,    10,  30,  60};
inline const Buckets kHttpBuckets = {.001, .005, .01, .05, .1, .5, 1, 2.5, 5, 10, 30, 60, 300};
inline const Buckets kChoiceBuckets = {1, 2, 5, 10, 20};

inline constexpr size_t kMostKeys = 256;        // that have series of their own
inline constexpr size_t kMostGoneWorkers = 64;  // whose counters and histograms stay as they were

inline Buckets TokenCountBuckets() {
  Buckets out;
  for (double decade = 1; decade <= 100000; decade *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) out.push_back(step * decade);
  }
  return out;
}

/// What a worker had reported when it was scraped.
struct StepHistory {
  struct Sample {
    TimePoint at;
    int64_t prompt_tokens, generation_tokens;
  };
  std::string incarnation;
  std::deque<Sample> samples;  ///< oldest first
  StepSizes shown;             ///< in the histogram
};

struct RouterMetrics::Families {
  explicit Families(const std::string& model)
      : labels{{"model_name", model}, {"engine", "router"}, {"role", "router"}} {}

  std::map<std::string, const tls::LiveIdentity*> identities;  // by the flag of the certificate; none: no TLS
  const SpanExporter* traces = nullptr;                        // null: no traces are sent
  const tls::Refusals* refusals = nullptr;

  prom::Histogram& Histogram(const char* name, const char* help, const Buckets& buckets) {
    return prom::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels, buckets);
  }
  prom::Histogram& Stage(const char* stage) {
    prom::Labels with = labels;
    with["stage"] = stage;
    return prom::BuildHistogram()
        .Name("baton_stage_seconds")
        .Help("Time of a request in each stage; transfer: from the attach to all KV verified on decode")
        .Register(registry)
        .Add(with, kStageBuckets);
  }
  prom::Counter& Counter(const char* name, const char* help, prom::Labels more = {}) {
    more.insert(labels.begin(), labels.end());
    return prom::BuildCounter().Name(name).Help(help).Register(registry).Add(more);
  }
  /// Set at every scrape: a series that a scrape does not set, because a worker's labels have changed, is gone.
  prom::Gauge& Gauge(const char* name, const char* help, const prom::Labels& with) {
    auto& family = prom::BuildGauge().Name(name).Help(help).Register(registry);
    prom::Gauge& gauge = family.Add(with);
    shown[&gauge] = &family;
    return gauge;
  }
  void BeginScrape() { shown_before = std::exchange(shown, {}); }
  void DropOldGauges() {
    for (const auto& [gauge, family] : shown_before) {
      if (!shown.contains(gauge)) family->Remove(gauge);
    }
  }
  /// A series that says what `worker` has done so far. It stays when the worker goes, which may come back.
  template <class Series>
  void Lasts(const std::string& worker, prom::Family<Series>& family, Series& series) {
    lasting[worker].series.try_emplace(&series, [&family, &series] { family.Remove(&series); });
  }
  /// Of workers that went, those that went longest ago lose their series: workers of new names come with every rollout.
  void DropLongGone(const std::vector<LinkView>& workers);
  /// Labels of a worker's series.
  prom::Labels LabelsOf(const LinkView& worker) const {
    return {{"model_name", labels.at("model_name")},
            {"engine", std::to_string(worker.id.index)},
            {"worker", worker.name()},
            {"role", worker.facts ? WorkerRoleName(worker.facts->role) : "unknown"}};
  }
  struct HttpSeries {
    prom::Counter* requests = nullptr;
    prom::Histogram* seconds = nullptr;
  };
  HttpSeries Http(const std::string& handler, const std::string& method, const std::string& code) {
    return {&prom::BuildCounter()
                 .Name("http_requests_total")
                 .Help("HTTP requests")
                 .Register(registry)
                 .Add({{"handler", handler}, {"method", method}, {"status", code}}),
            &prom::BuildHistogram()
                 .Name("http_request_duration_seconds")
                 .Help("HTTP request time")
                 .Register(registry)
                 .Add({{"handler", handler}, {"method", method}}, kHttpBuckets)};
  }
  void RenderTls() {
    if (identities.empty()) return;
    for (const auto& [flag, identity] : identities)
      Gauge("baton_tls_certificate_seconds_left", "Until it expires; negative afterwards",
            {{"model_name", labels.at("model_name")}, {"flag", flag}})
          .Set(static_cast<double>(identity->SecondsLeft()));
    for (const tls::Refusals::Count& count : refusals->Counts()) {
      prom::Counter& counter = Counter("baton_tls_refused_total", "Connections refused because of TLS",
                                       {{"port", count.port}, {"reason", std::string(count.reason)}});
      counter.Increment(std::max(0.0, static_cast<double>(count.connections) - counter.Value()));
    }
  }
  void RenderTraces() {
    if (traces == nullptr) return;
    const SpanCounts counts = traces->counts();
    for (const auto& [result, spans] :
         {std::pair("sent", counts.sent), std::pair("dropped", counts.dropped), std::pair("failed", counts.failed)}) {
      prom::Counter& counter =
          Counter("baton_trace_spans_total", "Spans of traces by what became of them", {{"result", result}});
      counter.Increment(std::max(0.0, static_cast<double>(spans) - counter.Value()));
    }
  }
  // The first keys by name, the others together: a series takes memory here and in whatever scrapes it.
  void RenderKeys(const std::vector<KeyUse>& keys) {
    const auto show = [&](const KeyUse& use) {
      const auto grow = [&](const char* name, const char* help, prom::Labels more, int64_t value) {
        more["key"] = use.name;
        prom::Counter& counter = Counter(name, help, std::move(more));
        counter.Increment(std::max(0.0, static_cast<double>(value) - counter.Value()));
      };
      grow("baton_key_requests_total", "Requests that the key's limits let through", {}, use.requests);
      const char* tokens = "Tokens that requests of the key have used";
      grow("baton_key_tokens_total", tokens, {{"kind", "prompt"}}, use.prompt_tokens);
      grow("baton_key_tokens_total", tokens, {{"kind", "completion"}}, use.completion_tokens);
      const char* refused = "Requests over a limit of the key, or that gave way to others'";
      grow("baton_key_refused_total", refused, {{"limit", "requests-per-minute"}}, use.refused_for_requests);
      grow("baton_key_refused_total", refused, {{"limit", "tokens-per-minute"}}, use.refused_for_tokens);
      grow("baton_key_refused_total", refused, {{"limit", "share"}}, use.refused_for_share);
      grow("baton_key_refused_total", refused, {{"limit", "unread"}}, use.ended_unread);
    };
    KeyUse others{"(others)"};
    for (size_t i = 0; i < keys.size(); ++i) {
      if (i < kMostKeys) {
        show(keys[i]);
        continue;
      }
      others.requests += keys[i].requests;
      others.prompt_tokens += keys[i].prompt_tokens;
      others.completion_tokens += keys[i].completion_tokens;
      others.refused_for_requests += keys[i].refused_for_requests;
      others.refused_for_tokens += keys[i].refused_for_tokens;
      others.refused_for_share += keys[i].refused_for_share;
      others.ended_unread += keys[i].ended_unread;
    }
    if (keys.size() > kMostKeys) show(others);
  }
  // What workers report: of their half of the handoffs and of their KV blocks; of the ways between them; of who waits
  // (worker_series.cc).
  void RenderHandoff(const prom::Labels& with, WorkerRole role, const std::string& incarnation, const WorkerLoad& load);
  void RenderGrammars(const prom::Labels& with, const std::string& incarnation, const GrammarLoad& g);
  void RenderHeld(const prom::Labels& with, const HandoffLoad& h);
  void RenderTransfers(const prom::Labels& with, const std::string& incarnation, const HandoffLoad& h);
  void RenderPeers(const std::vector<LinkView>& workers);
  void RenderQueues(const std::vector<LinkView>& workers);
  // What workers report of their steps: sizes, tokens in a second, room left in blocks (worker_steps.cc).
  void RenderSteps(const prom::Labels& with, const WorkerFacts& facts, const WorkerLoad& load, TimePoint now);
  // This process, by the names of Prometheus's clients (process_series.cc).
  void RenderProcess();
  void RenderRouter(const RouterHoldings& router) {
    const auto set = [this](const char* name, const char* help, double value) { Gauge(name, help, labels).Set(value); };
    set("baton_router_running_requests", "Requests in the router", static_cast<double>(router.running_requests));
    set("baton_router_recomputing_requests", "Requests whose prompt is computed a second time (--retry-budget)",
        static_cast<double>(router.recomputing_requests));
    set("baton_router_index_units", "Prefix units in the index", static_cast<double>(router.index_units));
    set("baton_router_index_bytes", "Memory of the prefix index", static_cast<double>(router.index_bytes));
    set("baton_router_texts_queued", "Texts waiting for the text pool", static_cast<double>(router.texts_queued));
    set("baton_router_token_cache_bytes", "Memory of the token cache",
        static_cast<double>(router.token_cache.kept_bytes));
    Grow("baton_router_token_cache_found_bytes_total", "Prompt text whose token ids were known", labels, "",
         router.token_cache.found_bytes);
    Grow("baton_router_token_cache_tokenized_bytes_total", "Prompt text that was tokenized", labels, "",
         router.token_cache.tokenized_bytes);
    const auto grammars = [&](const char* outcome, int64_t count) {
      prom::Labels with = labels;
      with["outcome"] = outcome;
      Grow("baton_grammars_total", "Grammars of requests: known, compiled, refused", with, "",
           static_cast<double>(count));
    };
    grammars("known", router.grammars.known);
    grammars("compiled", router.grammars.compiled);
    grammars("refused", router.grammars.refused);
    Grow("baton_grammar_compile_seconds_total", "Time in which the router compiled grammars of requests", labels, "",
         router.grammars.compile_s);
  }

  // A worker's own counter, carried on by what it grew; a restarted worker starts from 0 again.
  void Grow(const char* name, const char* help, const prom::Labels& with, const std::string& incarnation,
            double value) {
    std::string series = name;
    for (const auto& [label, text] : with) series += "|" + text;
    auto& [from, last] = grown[series];
    if (from != incarnation) {
      from = incarnation;
      last = 0;
    }
    auto& family = prom::BuildCounter().Name(name).Help(help).Register(registry);
    auto& counter = family.Add(with);
    if (const auto worker = with.find("worker"); worker != with.end()) {
      Lasts(worker->second, family, counter);
      lasting[worker->second].grown.insert(series);
    }
    if (value > last) counter.Increment(value - last);
    last = std::max(last, value);
  }

  prom::Labels labels;
  prom::Registry registry{prom::Registry::InsertBehavior::Merge};
  std::mutex http_mutex;  // guards what follows: looking a series up in the registry takes microseconds
  std::map<std::array<std::string, 3>, HttpSeries> http;                   // by handler, method, status
  std::mutex render_mutex;                                                 // guards what follows
  std::map<prom::Gauge*, prom::Family<prom::Gauge>*> shown, shown_before;  // gauges of this scrape and the one before
  std::map<std::string, std::pair<std::string, double>> grown;
  std::map<std::string, StepHistory> step_history;  // by a worker's name
  struct Lasting {
    uint64_t seen = 0;                                    ///< the last scrape in which the worker was there
    std::map<const void*, std::function<void()>> series;  ///< what removes each
    std::set<std::string> grown;                          ///< keys of it there
  };
  std::map<std::string, Lasting> lasting;  // by a worker's name
  uint64_t scrapes = 0;

  prom::Histogram& first_token =
      Histogram("vllm:time_to_first_token_seconds", "Time to first token", kFirstTokenBuckets);
  prom::Histogram& inter_token =
      Histogram("vllm:inter_token_latency_seconds", "Time between two tokens", kTokenBuckets);
  prom::Histogram& per_token =
      Histogram("vllm:request_time_per_output_token_seconds", "Mean time per output token of a request", kTokenBuckets);
  prom::Histogram& e2e = Histogram("vllm:e2e_request_latency_seconds", "Whole time of a request", kRequestBuckets);
  prom::Histogram& queue = Histogram("vllm:request_queue_time_seconds", "Time a request waited", kRequestBuckets);
  prom::Histogram& prefill =
      Histogram("vllm:request_prefill_time_seconds", "Prefill time of a request", kRequestBuckets);
  prom::Histogram& decode = Histogram("vllm:request_decode_time_seconds", "Decode time of a request", kRequestBuckets);
  prom::Histogram& inference =
      Histogram("vllm:request_inference_time_seconds", "Prefill and decode time of a request", kRequestBuckets);
  prom::Histogram& prompt = Histogram("vllm:request_prompt_tokens", "Prompt tokens of a request", TokenCountBuckets());
  prom::Histogram& generation =
      Histogram("vllm:request_generation_tokens", "Generated tokens of a request", TokenCountBuckets());
  prom::Histogram& longest_choice = Histogram("vllm:request_max_num_generation_tokens",
                                              "Generated tokens of a request's longest choice", TokenCountBuckets());
  prom::Histogram& computed = Histogram("vllm:request_prefill_kv_computed_tokens",
                                        "Prompt tokens of a request that were not cached", TokenCountBuckets());
  prom::Histogram& max_tokens =
      Histogram("vllm:request_params_max_tokens", "max_tokens of a request", TokenCountBuckets());
  prom::Histogram& n = Histogram("vllm:request_params_n", "n of a request", kChoiceBuckets);
  const std::map<std::string, prom::Counter*> finished = [this] {
    std::map<std::string, prom::Counter*> by_reason;
    for (const char* reason : {"stop", "length", "abort", "error"}) {
      by_reason[reason] = &Counter("vllm:request_success_total", "Finished requests", {{"finished_reason", reason}});
    }
    return by_reason;
  }();
  struct StageSeries {
    double StageTimings::* ms;
    prom::Histogram* seconds;
  };
  const std::array<StageSeries, 10> stages = {{
      {&StageTimings::router_ms, &Stage("router")},
      {&StageTimings::lost_ms, &Stage("lost")},
      {&StageTimings::reserve_ms, &Stage("reserve")},
      {&StageTimings::queue_prefill_ms, &Stage("queue_prefill")},
      {&StageTimings::prefill_ms, &Stage("prefill")},
      {&StageTimings::network_ms, &Stage("network")},
      {&StageTimings::transfer_ms, &Stage("transfer")},
      {&StageTimings::queue_decode_ms, &Stage("queue_decode")},
      {&StageTimings::first_decode_ms, &Stage("first_decode")},
      {&StageTimings::decode_ms, &Stage("decode")},
  }};
  prom::Counter& retries = Counter("baton_retries_total",
                                   "Requests, or their prompts alone, sent to another worker before their first token");
  prom::Counter& migrations =
      Counter("baton_migrations_total", "Requests moved to another worker after their first token");
  prom::Counter& predicted_hits =
      Counter("baton_prefix_hit_tokens_predicted_total", "Cached prompt tokens the router's index predicted");
  prom::Counter& reported_hits =
      Counter("baton_prefix_hit_tokens_reported_total", "Cached prompt tokens workers reported");
  prom::Counter& thought_tokens = Counter("baton_thought_tokens_total", "Generated tokens that were thoughts");
};

}  // namespace baton::router
