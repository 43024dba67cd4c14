#include "router/telemetry/request_trace.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "router/telemetry/trace_parent.h"

namespace baton::router {
namespace {

std::string Id(uint64_t (*random)()) {
  uint64_t word = random();
  while (word == 0) word = random();
  return absl::StrFormat("%016x", word);
}

// By the trace id's last 56 bits, as OpenTelemetry's ratio samplers do, so that all who see the trace agree.
bool Kept(const std::string& trace_id, double ratio) {
  if (ratio >= 1) return true;
  const uint64_t low = std::strtoull(trace_id.substr(18).c_str(), nullptr, 16);
  return static_cast<double>(low) < ratio * 0x1p56;
}

Duration OfMs(double ms) { return Duration(std::llround(ms * 1e6)); }

/// Lays spans into a trace, each a child of the first.
class Timeline {
 public:
  Timeline(const RequestTrace& trace, const Span& root, uint64_t (*random)())
      : trace_(trace), root_(root), random_(random) {}

  /// From `from` on after the request's arrival; none where it took no time. Returns its end.
  Duration Add(const char* name, Duration from, Duration length, const std::string& worker = "") {
    if (length <= Duration{}) return from;
    Span span{name, root_.trace_id, Id(random_), root_.span_id};
    span.start_unix_ns = root_.start_unix_ns + std::min(from, trace_.took).count();
    span.end_unix_ns = root_.start_unix_ns + std::min(from + length, trace_.took).count();
    if (!worker.empty()) span.attributes.emplace_back("baton.worker", worker);
    spans_.push_back(std::move(span));
    return from + length;
  }
  std::vector<Span> Take() { return std::move(spans_); }

 private:
  const RequestTrace& trace_;
  const Span& root_;
  uint64_t (*random_)();
  std::vector<Span> spans_;
};

// The names are vLLM's, and OpenTelemetry's conventions for generative AI where it has one for the same.
std::vector<std::pair<std::string, Span::Value>> AttributesOf(const RequestTrace& t) {
  std::vector<std::pair<std::string, Span::Value>> out = {
      {"gen_ai.provider.name", std::string("baton")},
      {"gen_ai.request.id", t.request_id},
      {"gen_ai.request.model", t.model},
      {"gen_ai.response.model", t.model},
      {"gen_ai.request.max_tokens", t.max_tokens},
      {"gen_ai.request.temperature", t.temperature},
      {"gen_ai.request.top_p", t.top_p},
      {"gen_ai.request.n", t.n},
      {"gen_ai.usage.prompt_tokens", t.prompt_tokens},
      {"gen_ai.usage.input_tokens", t.prompt_tokens},
      {"gen_ai.usage.cache_read.input_tokens", t.cached_tokens},
      {"gen_ai.usage.completion_tokens", t.completion_tokens},
      {"gen_ai.usage.output_tokens", t.completion_tokens},
      {"gen_ai.usage.reasoning.output_tokens", t.thought_tokens},
      {"gen_ai.latency.time_in_queue", (t.stages.queue_prefill_ms + t.stages.queue_decode_ms) / 1000},
      {"gen_ai.latency.time_in_model_prefill", t.stages.prefill_ms / 1000},
      {"gen_ai.latency.time_in_model_decode", t.stages.decode_ms / 1000},
      {"gen_ai.latency.e2e", Seconds(t.took)},
      {"baton.finish_reason", t.finish_reason},
      {"baton.attempts", t.attempts},
      {"baton.mixed_numerics", t.mixed_numerics},
  };
  if (t.first_token) out.emplace_back("gen_ai.latency.time_to_first_token", Seconds(*t.first_token));
  if (!t.prefill_worker.empty()) out.emplace_back("baton.prefill_worker", t.prefill_worker);
  if (!t.decode_worker.empty()) out.emplace_back("baton.decode_worker", t.decode_worker);
  return out;
}

// Up to the first token the stages follow each other. What decode does begins with its attach, or with the first token
// where nothing was handed over.
std::vector<Span> StagesOf(const RequestTrace& t, const Span& root, uint64_t (*random)()) {
  Timeline line(t, root, random);
  const StageTimings& s = t.stages;
  const std::string& computed_by = t.prefill_worker.empty() ? t.decode_worker : t.prefill_worker;
  Duration at = line.Add("router", Duration{}, t.first_order.value_or(t.took));
  at = line.Add("lost", at, OfMs(s.lost_ms));
  at = line.Add("reserve", at, OfMs(s.reserve_ms), t.decode_worker);
  if (t.first_token && at < *t.first_token) {
    at = line.Add("prefill.queue", at, OfMs(s.queue_prefill_ms), computed_by);
    at = line.Add("prefill.compute", at, OfMs(s.prefill_ms), computed_by);
    line.Add("network", at, OfMs(s.network_ms));
  }
  const bool handed_over = !t.prefill_worker.empty() && t.attached;
  Duration from = handed_over ? *t.attached : t.first_token.value_or(t.took);
  from = line.Add("kv.transfer", from, OfMs(s.transfer_ms), t.decode_worker);
  from = line.Add("decode.queue", from, OfMs(s.queue_decode_ms), t.decode_worker);
  line.Add("decode.generate", from, OfMs(s.decode_ms), t.decode_worker);
  return line.Take();
}

}  // namespace

std::vector<Span> SpansOf(const RequestTrace& trace, double ratio, uint64_t (*random)()) {
  const auto caller = ParseTraceParent(trace.traceparent);
  Span root{"llm_request", caller ? caller->trace_id : Id(random) + Id(random), Id(random),
            caller ? caller->parent_id : ""};
  if (caller ? !caller->sampled : !Kept(root.trace_id, ratio)) return {};
  root.server = true;
  root.end_unix_ns = trace.ended_unix_ns;
  root.start_unix_ns = trace.ended_unix_ns - trace.took.count();
  root.error = trace.error;
  root.attributes = AttributesOf(trace);
  std::vector<Span> stages = StagesOf(trace, root, random);
  std::vector<Span> out;
  out.reserve(stages.size() + 1);
  out.push_back(std::move(root));
  std::move(stages.begin(), stages.end(), std::back_inserter(out));
  return out;
}

}  // namespace baton::router
