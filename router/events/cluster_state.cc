#include "router/events/cluster_state.h"

#include <algorithm>
#include <optional>

#include "router/events/flip_json.h"

namespace baton::router {
namespace {

constexpr Duration kTooOld = std::chrono::seconds(5);  // nobody looked meanwhile

void Rate(JsonWriter& w, std::string_view key, std::optional<double> value) {
  value ? w.Field(key, *value) : w.NullField(key);
}

void WriteKv(const LinkView& v, int64_t cached_tokens, JsonWriter& w) {
  const int64_t block = std::max(1, v.facts ? v.facts->tokens_per_block : 1);
  const int64_t free = std::max<int64_t>(0, v.load.kv_blocks_total - v.load.kv_blocks_used);
  const int64_t reserved = std::min((v.load.handoff.reserved_tokens + block - 1) / block, free);
  w.Key("kv").BeginObject().Field("blocks", v.load.kv_blocks_total).Field("used", v.load.kv_blocks_used);
  w.Field("reserved", reserved).Field("cached", std::min(cached_tokens / block, free - reserved));
  w.Field("tokens_per_block", block).Field("bytes_per_token", v.facts ? v.facts->kv_bytes_per_token : 0);
  w.Field("leaked", v.load.leaked_kv_blocks).EndObject();
}

void WriteLanding(const HandoffLoad& h, JsonWriter& w) {
  w.Key("handoff").BeginObject().Field("tickets", h.tickets).Field("jobs", h.jobs);
  w.Field("granted_slots", h.granted_slots).Field("free_slots", h.free_slots);
  w.Field("quarantined_slots", h.quarantined_slots).Field("slots_waiting", h.slots_waiting);
  w.Field("failures", h.lanes_failed + h.wire_digest_mismatches + h.source_digest_mismatches).EndObject();
}

// Who reaches whom, by the prefill workers' own reports.
void WriteLinks(const ClusterFacts& facts, const Traffic& traffic, double passed_s, JsonWriter& w) {
  w.Key("links").BeginArray();
  for (const LinkView& from : facts.workers) {
    for (const PeerPath& peer : *from.load.handoff.peers) {
      const auto to = std::ranges::find_if(
          facts.workers, [&](const LinkView& v) { return v.facts && v.facts->incarnation == peer.incarnation; });
      if (to == facts.workers.end()) continue;
      const auto moved = traffic.moved.find({from.name(), to->name()});
      const double bytes = moved == traffic.moved.end() ? 0 : static_cast<double>(moved->second);
      w.BeginObject().Field("from", from.name()).Field("to", to->name()).Field("transport", peer.transport);
      w.Field("path", peer.path).Field("self_test_gigabytes_per_second", peer.gigabytes_per_second);
      Rate(w, "bytes_per_s", passed_s > 0 ? std::optional(bytes / passed_s) : std::nullopt);
      w.EndObject();
    }
  }
  w.EndArray();
}

void WriteRequests(const Traffic& traffic, TimePoint now, JsonWriter& w) {
  const size_t shown = std::min(traffic.live.size(), ClusterState::kMostRequests);
  w.Key("requests").BeginArray();
  for (size_t i = 0; i < shown; ++i) {
    const LiveRequest& r = traffic.live[i];
    w.BeginObject().Field("id", r.id).Field("stage", r.stage).Field("age_ms", Milliseconds(now - r.arrived));
    w.Field("stage_ms", Milliseconds(now - r.stage_since)).NullIfEmpty("worker", r.worker);
    w.NullIfEmpty("prefill_worker", r.prefill_worker);
    w.Field("prompt_tokens", r.prompt_tokens).Field("tokens", r.tokens).EndObject();
  }
  w.EndArray().Field("requests_left_out", static_cast<int64_t>(traffic.live.size() - shown));
}

}  // namespace

void ClusterState::WriteWorker(const LinkView& v, int64_t cached_tokens, bool computes_prompts, double passed_s,
                               JsonWriter& w) {
  w.BeginObject().Field("index", v.id.index).Field("name", v.name()).Field("address", v.address);
  w.Field("role", WorkerRoleName(v.facts ? v.facts->role : WorkerRole::kUnknown));
  w.Field("state", LinkStateName(v.shown_state())).NullIfEmpty("detail", v.shown_detail());
  w.NullIfEmpty("phase", v.phase).Field("progress", v.progress);
  if (v.flip) WriteFlip(*v.flip, w);
  w.Field("requests", v.outstanding ? v.outstanding->requests() : 0);
  w.Field("max_num_seqs", v.facts ? v.facts->max_num_seqs : 0).Field("restarts", v.restarts).Field("losses", v.losses);
  if (v.has_load) {
    const WorkerLoad& l = v.load;
    const Counters now{v.facts ? v.facts->incarnation : "",
                       static_cast<double>(l.steps),
                       static_cast<double>(l.prompt_tokens - l.prefix_hits_tokens),
                       static_cast<double>(l.generation_tokens),
                       static_cast<double>(l.preemptions),
                       static_cast<double>(l.handoff.bytes),
                       l.handoff.seconds};
    const auto found = before_.find(v.id.index);
    const bool same = found != before_.end() && found->second.incarnation == now.incarnation && passed_s > 0;
    const auto rate = [&](double Counters::* what) {
      return same ? std::optional(std::max(0.0, now.*what - found->second.*what) / passed_s) : std::nullopt;
    };
    w.Field("running", l.running).Field("waiting", l.waiting).Field("queued_tokens", l.queued_tokens);
    w.Field("last_step_ms", l.last_step_ms).Field("decode_step_ms", l.decode_step_ms);
    Rate(w, "steps_per_s", rate(&Counters::steps));
    Rate(w, "prompt_tokens_per_s", computes_prompts ? rate(&Counters::prompt_tokens) : std::nullopt);
    Rate(w, "generation_tokens_per_s", rate(&Counters::generation_tokens));
    Rate(w, "preemptions_per_s", rate(&Counters::preemptions));
    Rate(w, "kv_bytes_per_s", rate(&Counters::bytes));
    const double busy_s = same ? now.seconds - found->second.seconds : 0,
                 bytes = same ? now.bytes - found->second.bytes : 0;
    Rate(w, "kv_gigabytes_per_second", busy_s > 0 ? std::optional(bytes / busy_s / 1e9) : std::nullopt);
    w.NullIfEmpty("transport", l.handoff.transport);
    WriteKv(v, cached_tokens, w);
    WriteLanding(l.handoff, w);
    if (same) {
      known_ = true;
      if (computes_prompts) prompt_tokens_ += *rate(&Counters::prompt_tokens);
      generation_tokens_ += *rate(&Counters::generation_tokens);
    }
    before_[v.id.index] = now;
  }
  w.EndObject();
}

std::string ClusterState::Build(const ClusterFacts& facts, const Traffic& traffic, TimePoint now, double unix_ms) {
  const bool fresh = built_ != TimePoint{} && now > built_ && now - built_ <= kTooOld;
  const double passed_s = fresh ? Seconds(now - built_) : 0;
  built_ = now;
  prompt_tokens_ = generation_tokens_ = 0;
  known_ = false;
  std::string out;
  JsonWriter w(out);
  w.BeginObject().Field("event", "state").Field("t", unix_ms);
  w.Field("status", facts.readiness.status).NullIfEmpty("detail", facts.readiness.detail);
  w.Field("running", facts.running_requests).Field("max_running", facts.max_running_requests);
  w.Field("recomputing", facts.recomputing_requests).Field("texts_queued", facts.texts_queued);
  const bool prefills = std::ranges::any_of(facts.workers, [](const LinkView& v) {
    return v.facts && v.facts->role == WorkerRole::kPrefill && v.state == LinkState::kReady;
  });
  w.Key("workers").BeginArray();
  for (size_t i = 0; i < facts.workers.size(); ++i) {
    const LinkView& v = facts.workers[i];
    const int64_t cached = i < facts.cached_tokens.size() ? facts.cached_tokens[i] : 0;
    WriteWorker(v, cached, !prefills || !v.facts || v.facts->role != WorkerRole::kDecode, passed_s, w);
  }
  w.EndArray();
  Rate(w, "prompt_tokens_per_s", known_ ? std::optional(prompt_tokens_) : std::nullopt);
  Rate(w, "generation_tokens_per_s", known_ ? std::optional(generation_tokens_) : std::nullopt);
  WriteLinks(facts, traffic, passed_s, w);
  WriteRequests(traffic, now, w);
  w.EndObject();
  return out;
}

}  // namespace baton::router
