#include "router/metrics/router_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "common/tls/live_identity.h"
#include "common/tls/refusals.h"

namespace baton::router {
namespace {
namespace prom = prometheus;
using Buckets = prom::Histogram::BucketBoundaries;

const Buckets kFirstTokenBuckets = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                    1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
// vLLM's, and three below for small models: a superset keeps its queries valid.
const Buckets kTokenBuckets = {.001, .002, .005, .01, .025, .05, .075, .1, .15, .2, .3,
                               .4,   .5,   .75,  1,   2.5,  5,   7.5,  10, 20,  40, 80};
const Buckets kRequestBuckets = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const Buckets kStageBuckets = {.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60};
const Buckets kHttpBuckets = {.001, .005, .01, .05, .1, .5, 1, 2.5, 5, 10, 30, 60, 300};
const Buckets kChoiceBuckets = {1, 2, 5, 10, 20};

constexpr size_t kMostKeys = 256;  // that have series of their own

Buckets TokenCountBuckets() {
  Buckets out;
  for (double decade = 1; decade <= 100000; decade *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) out.push_back(step * decade);
  }
  return out;
}

}  // namespace

struct RouterMetrics::Families {
  explicit Families(const std::string& model)
      : labels{{"model_name", model}, {"engine", "router"}, {"role", "router"}} {}

  const tls::LiveIdentity* identity = nullptr;  // null: no TLS
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
    if (identity == nullptr) return;
    Gauge("baton_tls_certificate_seconds_left", "Until the certificate expires; negative afterwards", labels)
        .Set(static_cast<double>(identity->SecondsLeft()));
    for (const tls::Refusals::Count& count : refusals->Counts()) {
      prom::Counter& counter = Counter("baton_tls_refused_total", "Connections refused because of TLS",
                                       {{"port", count.port}, {"reason", std::string(count.reason)}});
      counter.Increment(std::max(0.0, static_cast<double>(count.connections) - counter.Value()));
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
      const char* refused = "Requests over a limit of the key";
      grow("baton_key_refused_total", refused, {{"limit", "requests-per-minute"}}, use.refused_for_requests);
      grow("baton_key_refused_total", refused, {{"limit", "tokens-per-minute"}}, use.refused_for_tokens);
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
    }
    if (keys.size() > kMostKeys) show(others);
  }
  // A worker's report on its half of the handoffs, and on its KV blocks.
  void RenderHandoff(const prom::Labels& with, WorkerRole role, const std::string& incarnation,
                     const WorkerLoad& load) {
    Gauge("baton_leaked_kv_blocks", "KV block owners that nobody accounts for", with)
        .Set(static_cast<double>(load.leaked_kv_blocks));
    const HandoffLoad& h = load.handoff;
    for (const auto& [port, count] : {std::pair{"worker", load.calls_refused}, {"landing", h.connections_refused}}) {
      prom::Labels labelled = with;
      labelled["port"] = port;
      Grow("baton_worker_refused_total", "Calls and connections that a worker refused: who made them did not greet",
           labelled, incarnation, count);
    }
    if (!h.transport.empty()) RenderHeld(with, h);
    if (!h.transport.empty() || role != WorkerRole::kBoth) RenderTransfers(with, incarnation, h);
  }
  void RenderHeld(const prom::Labels& with, const HandoffLoad& h) {
    Gauge("baton_handoff_tickets", "Tickets of a decode worker that are not gone", with).Set(h.tickets);
    Gauge("baton_handoff_jobs", "Prefill legs that are not over", with).Set(h.jobs);
    Gauge("baton_handoff_reserved_tokens", "KV tokens that tickets have reserved", with)
        .Set(static_cast<double>(h.reserved_tokens));
    Gauge("baton_landing_slots_granted", "Landing slots that a writer may fill", with).Set(h.granted_slots);
    Gauge("baton_landing_slots_quarantined", "Landing slots whose writer is not fenced", with).Set(h.quarantined_slots);
    Gauge("baton_landing_slots_free", "Landing slots", with).Set(h.free_slots);
  }
  // A counter is there, as 0, before the first report.
  void RenderTransfers(const prom::Labels& with, const std::string& incarnation, const HandoffLoad& h) {
    prom::Labels transfer = with;
    transfer["transport"] = h.transport.empty() ? "unknown" : h.transport;
    const auto grow = [&](const char* name, const char* help, int64_t value) {
      Grow(name, help, with, incarnation, value);
    };
    Grow("baton_kv_transfer_bytes_total", "KV bytes sent (prefill) or placed (decode)", transfer, incarnation, h.bytes);
    Grow("baton_kv_transfer_slots_total", "Landing slots sent or placed", transfer, incarnation, h.slots);
    Grow("baton_kv_transfer_seconds_total", "Time with a slot under way (prefill) or being placed (decode)", transfer,
         incarnation, h.seconds);
    if (h.seconds > 0) {
      Gauge("baton_kv_transfer_gigabytes_per_second", "Bytes by time, since start", transfer)
          .Set(static_cast<double>(h.bytes) / h.seconds / 1e9);
    }
    const auto each = [&](const char* name, const char* help, const char* label,
                          std::initializer_list<std::pair<const char*, int64_t>> values) {
      for (const auto& [value, count] : values) {
        prom::Labels labelled = with;
        labelled[label] = value;
        Grow(name, help, labelled, incarnation, count);
      }
    };
    each("baton_kv_digest_mismatches_total",
         "KV that was not what it should be: wire: bytes changed on the way; slot: header or table unreadable or of "
         "another turn; source: blocks of the prefill worker no longer hold what was computed",
         "kind",
         {{"wire", h.wire_digest_mismatches}, {"slot", h.unreadable_slots}, {"source", h.source_digest_mismatches}});
    each("baton_kv_transfer_failures_total", "Transfers that did not go as they should", "reason",
         {{"wire_digest", h.wire_digest_mismatches},
          {"slot_unreadable", h.unreadable_slots},
          {"source_digest", h.source_digest_mismatches},
          {"peer_lost", h.peers_lost},
          {"self_test", h.self_tests_failed},
          {"no_room", h.no_room},
          {"unclean_close", h.unclean_closes}});
    each("baton_handoff_nacks_total", "Asks that were refused for now: reserve: a ticket; open: a lane", "kind",
         {{"reserve", h.reserves_refused}, {"open", h.opens_refused}});
    grow("baton_handoff_lanes_failed_total", "Lanes that could not be completed", h.lanes_failed);
    grow("baton_handoff_recomputes_total", "Prompts a decode worker computed because their KV was lost", h.recomputes);
    grow("baton_handoff_opens_refused_total", "Lanes told to ask again: no blocks or slots", h.opens_refused);
    grow("baton_handoff_rings_written_off_total", "Landing memories replaced: a frozen writer may still write them",
         h.rings_written_off);
    grow("baton_handoff_reserves_refused_total", "Tickets refused", h.reserves_refused);
    grow("baton_handoff_no_room_total", "Prefill legs that found no room on decode", h.no_room);
    grow("baton_handoff_resent_segments_total", "Segments sent again", h.resent_segments);
    grow("baton_handoff_unclean_closes_total", "Lanes closed after a failed flush", h.unclean_closes);
  }
  // The ways from prefill workers to decode workers. A decode worker is named by its place in the list, as everywhere
  // here.
  void RenderPeers(const std::vector<LinkView>& workers) {
    std::map<std::string, std::string> places;
    for (const LinkView& w : workers) {
      if (w.facts) places[w.facts->incarnation] = std::to_string(w.id.index);
    }
    for (const LinkView& w : workers) {
      if (w.state != LinkState::kReady && w.state != LinkState::kDraining) continue;
      for (const PeerPath& peer : *w.load.handoff.peers) {
        const auto place = places.find(peer.incarnation);
        if (place == places.end()) continue;
        prom::Labels with = LabelsOf(w);
        with["peer"] = place->second;
        with["transport"] = peer.transport;
        with["path"] = peer.path;
        Gauge("baton_kv_peer_gigabytes_per_second",
              "Of a prefill worker to a decode worker (peer), in the self-test of their connection", with)
            .Set(peer.gigabytes_per_second);
      }
    }
  }
  // Sequences in each stage, slots in the transfer; over all workers.
  void RenderQueues(const std::vector<LinkView>& workers) {
    std::map<std::string, int64_t> depth = {
        {"queue_prefill", 0}, {"prefill", 0}, {"transfer", 0}, {"queue_decode", 0}, {"decode", 0}};
    for (const LinkView& w : workers) {
      if (!w.facts || (w.state != LinkState::kReady && w.state != LinkState::kDraining)) continue;
      const bool prefill = w.facts->role == WorkerRole::kPrefill;
      depth[prefill ? "queue_prefill" : "queue_decode"] += w.load.waiting;
      depth[prefill ? "prefill" : "decode"] += w.load.running;
      if (prefill) depth["transfer"] += w.load.handoff.slots_waiting;
    }
    for (const auto& [stage, count] : depth) {
      prom::Labels with = labels;
      with["stage"] = stage;
      Gauge("baton_queue_depth", "Sequences in a stage; transfer: slots that wait for a buffer", with)
          .Set(static_cast<double>(count));
    }
  }
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
    auto& counter = prom::BuildCounter().Name(name).Help(help).Register(registry).Add(with);
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
  const std::array<prom::Histogram*, 6> stages = {&Stage("queue_prefill"), &Stage("prefill"),      &Stage("transfer"),
                                                  &Stage("queue_decode"),  &Stage("first_decode"), &Stage("decode")};
  prom::Counter& retries = Counter("baton_retries_total", "Requests sent to another worker before their first token");
  prom::Counter& migrations =
      Counter("baton_migrations_total", "Requests moved to another worker after their first token");
  prom::Counter& predicted_hits =
      Counter("baton_prefix_hit_tokens_predicted_total", "Cached prompt tokens the router's index predicted");
  prom::Counter& reported_hits =
      Counter("baton_prefix_hit_tokens_reported_total", "Cached prompt tokens workers reported");
  prom::Counter& thought_tokens = Counter("baton_thought_tokens_total", "Generated tokens that were thoughts");
};

RouterMetrics::RouterMetrics(const std::string& model_name) : f_(std::make_unique<Families>(model_name)) {}
RouterMetrics::~RouterMetrics() = default;

void RouterMetrics::FirstToken(double seconds) { f_->first_token.Observe(seconds); }
void RouterMetrics::InterToken(double seconds) { f_->inter_token.Observe(seconds); }

void RouterMetrics::Finished(const FinishedRequest& r) {
  f_->finished.at(r.finished_reason)->Increment();
  f_->e2e.Observe(r.e2e_s);
  f_->prompt.Observe(static_cast<double>(r.prompt_tokens));
  f_->generation.Observe(static_cast<double>(r.completion_tokens));
  f_->max_tokens.Observe(static_cast<double>(r.max_tokens));
  f_->n.Observe(static_cast<double>(r.n));
  if (r.queue_s >= 0) f_->queue.Observe(r.queue_s);
  if (r.prefill_s >= 0) f_->prefill.Observe(r.prefill_s);
  if (r.decode_s >= 0) f_->decode.Observe(r.decode_s);
  if (r.prefill_s >= 0 && r.decode_s >= 0) f_->inference.Observe(r.prefill_s + r.decode_s);
  if (r.time_per_output_token_s >= 0) f_->per_token.Observe(r.time_per_output_token_s);
  if (r.stages) {
    const StageTimings& t = *r.stages;
    const double ms[] = {t.queue_prefill_ms, t.prefill_ms,      t.transfer_ms,
                         t.queue_decode_ms,  t.first_decode_ms, t.decode_ms};
    for (size_t i = 0; i < std::size(ms); ++i) f_->stages[i]->Observe(ms[i] / 1000);
  }
  f_->retries.Increment(static_cast<double>(r.retries));
  f_->migrations.Increment(static_cast<double>(r.migrations));
  f_->predicted_hits.Increment(static_cast<double>(r.predicted_cached_tokens));
  f_->reported_hits.Increment(static_cast<double>(r.cached_tokens));
  f_->thought_tokens.Increment(static_cast<double>(r.thought_tokens));
}

void RouterMetrics::HttpDone(const std::string& handler, const std::string& method, int status, double seconds) {
  const std::string code = std::to_string(status / 100) + "xx";
  Families::HttpSeries series;
  {
    std::lock_guard lock(f_->http_mutex);
    Families::HttpSeries& known = f_->http[{handler, method, code}];
    if (known.requests == nullptr) known = f_->Http(handler, method, code);
    series = known;
  }
  series.requests->Increment();
  series.seconds->Observe(seconds);
}

void RouterMetrics::Refused(const std::string& reason) {
  f_->Counter("baton_refused_requests_total", "Requests refused at the door", {{"reason", reason}}).Increment();
}

void RouterMetrics::ConnectionClosed(const std::string& port, const std::string& reason) {
  f_->Counter("baton_http_connections_closed_total", "Clients' connections that were closed for what they took",
              {{"port", port}, {"reason", reason}})
      .Increment();
}

void RouterMetrics::ShowTls(const tls::LiveIdentity& identity, const tls::Refusals& refusals) {
  f_->identity = &identity;
  f_->refusals = &refusals;
}

std::string RouterMetrics::Render(const std::vector<LinkView>& workers, const RouterHoldings& router) {
  std::lock_guard lock(f_->render_mutex);
  f_->BeginScrape();
  f_->RenderTls();
  f_->RenderKeys(router.keys);
  for (const LinkView& w : workers) {
    const std::string incarnation = w.facts ? w.facts->incarnation : "";
    const prom::Labels with = f_->LabelsOf(w);
    const bool ready = w.state == LinkState::kReady || w.state == LinkState::kDraining;
    f_->Gauge("baton_worker_up", "1 while the worker can serve", with).Set(ready ? 1 : 0);
    const WorkerLoad load = ready ? w.load : WorkerLoad{};
    f_->Gauge("vllm:num_requests_running", "Requests in execution", with).Set(load.running);
    f_->Gauge("vllm:num_requests_waiting", "Requests waiting", with).Set(load.waiting);
    f_->Gauge("vllm:kv_cache_usage_perc", "KV blocks in use, 0 to 1", with)
        .Set(load.kv_blocks_total > 0
                 ? static_cast<double>(load.kv_blocks_used) / static_cast<double>(load.kv_blocks_total)
                 : 0);
    f_->Gauge("baton_worker_queued_tokens", "Uncached prompt tokens not computed yet", with)
        .Set(static_cast<double>(load.queued_tokens));
    if (w.facts && ready) f_->RenderHandoff(with, w.facts->role, incarnation, load);
    if (!w.facts) continue;
    f_->Grow("baton_worker_restarts_total", "Times that the worker came back as another process", with, "",
             static_cast<double>(w.restarts));
    f_->Grow("baton_worker_losses_total", "Connections to the worker that were lost", with, "",
             static_cast<double>(w.losses));
    prom::Labels config = with;
    config["block_size"] = std::to_string(w.facts->tokens_per_block);
    config["num_gpu_blocks"] = std::to_string(w.facts->kv_blocks);
    f_->Gauge("vllm:cache_config_info", "KV cache configuration", config).Set(1);
    if (!ready) continue;
    f_->Grow("vllm:prefix_cache_queries_total", "Prompt tokens looked up in prefix caches", with, incarnation,
             load.prefix_queries_tokens);
    f_->Grow("vllm:prefix_cache_hits_total", "Prompt tokens found in prefix caches", with, incarnation,
             load.prefix_hits_tokens);
    f_->Grow("vllm:num_preemptions_total", "Preempted sequences", with, incarnation, load.preemptions);
    f_->Grow("vllm:prompt_tokens_total", "Prompt tokens computed", with, incarnation, load.prompt_tokens);
    f_->Grow("vllm:generation_tokens_total", "Tokens generated", with, incarnation, load.generation_tokens);
  }
  f_->RenderPeers(workers);
  f_->RenderQueues(workers);
  f_->RenderRouter(router);
  f_->DropOldGauges();
  return prom::TextSerializer().Serialize(f_->registry.Collect());
}

}  // namespace baton::router
