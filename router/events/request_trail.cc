#include "router/events/request_trail.h"

#include <utility>

#include "router/events/event_stream.h"

namespace baton::router {
namespace {

constexpr Duration kTickEvery = std::chrono::milliseconds(100);

void WritePath(JsonWriter& w, const KvPath& path, int64_t bytes) {
  w.Field("bytes", bytes).NullIfEmpty("transport", path.transport).NullIfEmpty("path", path.path);
  w.Field("self_test_gigabytes_per_second", path.gigabytes_per_second);
}

void WriteTimings(JsonWriter& w, const StageTimings& t) {
  w.Key("timings").BeginObject().Field("queue_prefill_ms", t.queue_prefill_ms).Field("prefill_ms", t.prefill_ms);
  w.Field("transfer_ms", t.transfer_ms).Field("queue_decode_ms", t.queue_decode_ms);
  w.Field("first_decode_ms", t.first_decode_ms).Field("decode_ms", t.decode_ms).Field("router_ms", t.router_ms);
  w.Field("lost_ms", t.lost_ms).Field("reserve_ms", t.reserve_ms).Field("network_ms", t.network_ms).EndObject();
}

}  // namespace

RequestTrail::RequestTrail(EventStream& stream, std::string id, TimePoint arrived) : stream_(stream) {
  live_.id = std::move(id);
  live_.arrived = live_.stage_since = arrived;
  marks_.reserve(12);
  stream_.Add(*this);
  Mark("received");
}

RequestTrail::~RequestTrail() {
  if (!ended_) End(TrailEnd{.reason = "abort"});
  stream_.Remove(*this);
}

void RequestTrail::Mark(const char* stage, const Fields& fields) {
  const TimePoint now = stream_.Now();
  const double at_ms = Milliseconds(now - live_.arrived);
  marks_.emplace_back(stage, at_ms);
  std::string event;
  JsonWriter w(event);
  w.BeginObject().Field("event", "request").Field("t", stream_.UnixMs(now)).Field("id", live_.id);
  w.Field("stage", stage).Field("at_ms", at_ms);
  if (fields) fields(w);
  w.EndObject();
  stream_.Publish(std::move(event), [&] {
    live_.stage = stage;
    live_.stage_since = now;
  });
}

std::string RequestTrail::Why(const TokenizedRequest& generation) const { return stream_.Why(generation); }

void RequestTrail::Tokenized(const TokenizedRequest& generation) {
  const auto tokens = static_cast<int64_t>(generation.prompt.size());
  stream_.Note([&] { live_.prompt_tokens = tokens; });
  Mark("tokenized", [&](JsonWriter& w) {
    w.Field("prompt_tokens", tokens).Field("max_tokens", int64_t{generation.sampling.max_tokens.value_or(0)});
    w.Field("n", int64_t{generation.sampling.n});
  });
}

void RequestTrail::Placed(const RoutedTo& place, const std::string& worker, const std::string& prefill_worker,
                          uint32_t attempt, const std::string& why) {
  stream_.Note([&] {
    live_.worker = worker;
    live_.prefill_worker = prefill_worker;
  });
  Mark("placed", [&](JsonWriter& w) {
    w.Field("worker", worker).NullIfEmpty("prefill_worker", prefill_worker).Field("attempt", attempt);
    w.Field("predicted_cached_tokens", place.predicted_cached_tokens);
    w.Field("predicted_ttft_ms", place.predicted_ttft_ms);
    if (!why.empty()) w.Key("why").Raw(why);
  });
}

void RequestTrail::Waits(const std::string& cause) {
  if (std::string_view(marks_.back().first) == "waiting") return;  // asked again every few milliseconds
  Mark("waiting", [&](JsonWriter& w) { w.Field("cause", cause); });
}

void RequestTrail::Lost(const std::string& worker, const std::string& cause) {
  Mark("lost", [&](JsonWriter& w) { w.Field("worker", worker).Field("cause", cause); });
}

void RequestTrail::Reserving(const std::string& worker) {
  Mark("reserving", [&](JsonWriter& w) { w.Field("worker", worker); });
}

void RequestTrail::Reserved(uint32_t cached_tokens) {
  Mark("reserved", [&](JsonWriter& w) { w.Field("cached_tokens", cached_tokens); });
}

void RequestTrail::Prefill(const std::string& worker) {
  stream_.Note([&] { live_.prefill_worker = worker; });
  Mark("prefill", [&](JsonWriter& w) { w.Field("worker", worker); });
}

void RequestTrail::Prefilled(const StageTimings& timings) {
  Mark("prefilled", [&](JsonWriter& w) {
    w.Field("queue_prefill_ms", timings.queue_prefill_ms).Field("prefill_ms", timings.prefill_ms);
  });
}

void RequestTrail::Transfer(const KvPath& path, int64_t tokens) {
  path_ = path;
  kv_bytes_ = tokens * path.bytes_per_token;
  stream_.Moved(live_.prefill_worker, live_.worker, kv_bytes_);
  Mark("transfer", [&](JsonWriter& w) {
    w.Field("tokens", tokens);
    WritePath(w, path_, kv_bytes_);
  });
}

void RequestTrail::Attached(const std::string& worker) {
  Mark("attached", [&](JsonWriter& w) { w.Field("worker", worker); });
}

void RequestTrail::FirstToken() { Mark("first_token"); }

// Marks of tokens come at intervals, and not all where many requests run at once: they show the pace.
void RequestTrail::Tokens(int64_t tokens) {
  const TimePoint now = stream_.Now();
  stream_.Note([&] { live_.tokens = tokens; });
  if (now - last_tick_ < kTickEvery || !stream_.TakeTick(now)) return;
  last_tick_ = now;
  std::string event;
  JsonWriter w(event);
  w.BeginObject().Field("event", "request").Field("t", stream_.UnixMs(now)).Field("id", live_.id);
  w.Field("stage", "tokens").Field("at_ms", Milliseconds(now - live_.arrived));
  w.Field("new", tokens - std::exchange(ticked_tokens_, tokens)).Field("tokens", tokens).EndObject();
  stream_.Publish(std::move(event), [&] {
    live_.stage = "tokens";
    live_.stage_since = now;
  });
}

void RequestTrail::End(const TrailEnd& end) {
  if (ended_) return;
  stream_.Note([&] { ended_ = true; });
  const TimePoint now = stream_.Now();
  std::string event;
  JsonWriter w(event);
  w.BeginObject().Field("event", "request").Field("t", stream_.UnixMs(now)).Field("id", live_.id);
  w.Field("stage", "finished").Field("at_ms", Milliseconds(now - live_.arrived)).Field("reason", end.reason);
  w.NullIfEmpty("error", end.error).NullIfEmpty("worker", live_.worker);
  w.NullIfEmpty("prefill_worker", live_.prefill_worker).Field("attempts", end.attempts);
  w.Field("migrations", end.migrations).Field("prompt_tokens", end.prompt_tokens);
  w.Field("completion_tokens", end.completion_tokens).Field("cached_tokens", end.cached_tokens);
  w.Field("first_token_ms", end.times.first_ms).Field("last_token_ms", end.times.last_ms);
  w.Field("mean_gap_ms", end.times.gaps > 0 ? end.times.gaps_ms / static_cast<double>(end.times.gaps) : 0);
  WriteTimings(w, end.timings);
  if (kv_bytes_ > 0) {
    w.Key("transfer").BeginObject();
    WritePath(w, path_, kv_bytes_);
    w.EndObject();
  }
  w.Key("marks").BeginArray();
  for (const auto& [stage, at_ms] : marks_) w.BeginArray().String(stage).Number(at_ms).EndArray();
  w.EndArray().EndObject();
  stream_.Keep(event);
  stream_.Publish(std::move(event), [] {});
}

}  // namespace baton::router
