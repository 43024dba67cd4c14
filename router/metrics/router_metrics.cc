#include "router/metrics/router_metrics.h"

#include <prometheus/text_serializer.h>

#include "router/metrics/metric_families.h"

namespace baton::router {

RouterMetrics::RouterMetrics(const std::string& model_name) : f_(std::make_unique<Families>(model_name)) {}
RouterMetrics::~RouterMetrics() = default;

void RouterMetrics::FirstToken(double seconds) { f_->first_token.Observe(seconds); }
void RouterMetrics::InterToken(double seconds) { f_->inter_token.Observe(seconds); }

void RouterMetrics::Finished(const FinishedRequest& r) {
  f_->finished.at(r.finished_reason)->Increment();
  f_->e2e.Observe(r.e2e_s);
  f_->prompt.Observe(static_cast<double>(r.prompt_tokens));
  f_->generation.Observe(static_cast<double>(r.completion_tokens));
  f_->longest_choice.Observe(static_cast<double>(r.longest_choice_tokens));
  f_->computed.Observe(static_cast<double>(r.prompt_tokens - r.cached_tokens));
  f_->max_tokens.Observe(static_cast<double>(r.max_tokens));
  f_->n.Observe(static_cast<double>(r.n));
  if (r.queue_s >= 0) f_->queue.Observe(r.queue_s);
  if (r.prefill_s >= 0) f_->prefill.Observe(r.prefill_s);
  if (r.decode_s >= 0) f_->decode.Observe(r.decode_s);
  if (r.prefill_s >= 0 && r.decode_s >= 0) f_->inference.Observe(r.prefill_s + r.decode_s);
  if (r.time_per_output_token_s >= 0) f_->per_token.Observe(r.time_per_output_token_s);
  if (r.stages) {
    for (const Families::StageSeries& stage : f_->stages) stage.seconds->Observe(*r.stages.*stage.ms / 1000);
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

void RouterMetrics::ShowTls(const char* flag, const tls::LiveIdentity& identity, const tls::Refusals& refusals) {
  f_->identities[flag] = &identity;
  f_->refusals = &refusals;
}

void RouterMetrics::ShowTraces(const SpanExporter& traces) { f_->traces = &traces; }

std::string RouterMetrics::Render(const std::vector<LinkView>& workers, const RouterHoldings& router) {
  std::lock_guard lock(f_->render_mutex);
  f_->BeginScrape();
  f_->RenderTls();
  f_->RenderTraces();
  f_->RenderKeys(router.keys);
  for (const LinkView& w : workers) {
    const std::string incarnation = w.facts ? w.facts->incarnation : "";
    const prom::Labels with = f_->LabelsOf(w);
    const bool ready = w.state == LinkState::kReady || w.state == LinkState::kDraining;
    f_->Gauge("baton_worker_up", "1 while the worker can serve", with).Set(ready ? 1 : 0);
    const WorkerLoad load = ready ? w.load : WorkerLoad{};
    f_->Gauge("vllm:num_requests_running", "Requests in execution", with).Set(load.running);
    f_->Gauge("vllm:num_requests_waiting", "Requests waiting", with).Set(load.waiting);
    f_->Gauge("baton_sequences_unread", "Sequences in no step until their readers take something", with)
        .Set(load.unread);
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
    f_->Grow("vllm:prompt_tokens_total",
             "Tokens of the prompts that a worker took up, cached and handed over ones, too", with, incarnation,
             load.prompt_tokens);
    f_->Grow("vllm:generation_tokens_total", "Tokens generated", with, incarnation, load.generation_tokens);
    f_->RenderSteps(with, *w.facts, load, router.now);
  }
  f_->RenderPeers(workers);
  f_->RenderQueues(workers);
  f_->RenderRouter(router);
  f_->RenderProcess();
  f_->DropOldGauges();
  f_->DropLongGone(workers);
  return prom::TextSerializer().Serialize(f_->registry.Collect());
}

}  // namespace baton::router
