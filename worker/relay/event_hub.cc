#include "worker/relay/event_hub.h"

#include <algorithm>

namespace baton::worker {
namespace {

constexpr size_t kHashesPerMessage = 4096;

void AppendHash(std::string& out, const PrefixHash& hash) {
  out.append(reinterpret_cast<const char*>(&hash.lo), 8);
  out.append(reinterpret_cast<const char*>(&hash.hi), 8);
}

}  // namespace

void EventHub::Send(Watcher& watcher, v1::WorkerEvent event) {
  event.set_incarnation(incarnation_);
  event.set_sequence_number(++watcher.sequence_number);
  watcher.sink->Send(std::move(event));
}

void EventHub::SendAll(const v1::WorkerEvent& event) {
  for (Watcher& watcher : watchers_) Send(watcher, event);
}

void EventHub::Add(std::shared_ptr<WatchSink> sink, const LoadTerms& terms, engine::Scheduler& scheduler) {
  // Events that the other watchers still have to hear are in the new watcher's snapshot already.
  if (const engine::KvEvents news = scheduler.cache().TakeEvents(); news.gap || !news.events.empty())
    OnKvEvents(news, scheduler);
  watchers_.push_back({.sink = std::move(sink), .reports = LoadReports(terms)});
  SendSnapshot(watchers_.back(), scheduler);
  v1::WorkerEvent event;
  *event.mutable_state() = state_;
  Send(watchers_.back(), event);
}

void EventHub::Remove(const WatchSink* sink) {
  std::erase_if(watchers_, [&](const Watcher& w) { return w.sink.get() == sink; });
}

void EventHub::SendSnapshot(Watcher& watcher, engine::Scheduler& scheduler) {
  const std::vector<engine::KvEvent> stored = scheduler.cache().Snapshot();
  size_t next = 0;
  do {
    v1::WorkerEvent event;
    v1::KvSnapshot& snapshot = *event.mutable_snapshot();
    const size_t end = std::min(stored.size(), next + kHashesPerMessage);
    for (; next < end; ++next) AppendHash(*snapshot.mutable_hashes(), stored[next].hash);
    snapshot.set_last(next == stored.size());
    Send(watcher, std::move(event));
  } while (next < stored.size());
}

void EventHub::OnKvEvents(const engine::KvEvents& events, engine::Scheduler& scheduler) {
  if (events.gap) {
    digest_ = 0;
    for (const engine::KvEvent& e : scheduler.cache().Snapshot()) digest_ += e.hash.lo;
    for (Watcher& watcher : watchers_) SendSnapshot(watcher, scheduler);
    return;
  }
  for (size_t i = 0; i < events.events.size();) {
    const engine::KvEvent::Kind kind = events.events[i].kind;
    const bool stored = kind == engine::KvEvent::Kind::kStored;
    std::string hashes;
    // A run: one kind, and for stored units each the child of the one before.
    const size_t begin = i;
    do {
      AppendHash(hashes, events.events[i].hash);
      digest_ += stored ? events.events[i].hash.lo : -events.events[i].hash.lo;
      ++i;
    } while (i < events.events.size() && events.events[i].kind == kind && i - begin < kHashesPerMessage &&
             (!stored || events.events[i].parent == events.events[i - 1].hash));
    v1::WorkerEvent event;
    if (stored) {
      event.mutable_stored()->set_hashes(std::move(hashes));
      event.mutable_stored()->set_digest(digest_);
    } else {
      event.mutable_removed()->set_hashes(std::move(hashes));
      event.mutable_removed()->set_digest(digest_);
    }
    SendAll(event);
  }
}

void EventHub::SendLoad(const v1::Load& load, TimePoint now) {
  for (Watcher& watcher : watchers_) {
    if (!watcher.reports.Due(load, now)) continue;
    v1::WorkerEvent event;
    *event.mutable_load() = load;
    Send(watcher, std::move(event));
  }
}

Duration EventHub::ShortestInterval(Duration otherwise) const {
  for (const Watcher& watcher : watchers_) otherwise = std::min(otherwise, watcher.reports.every());
  return otherwise;
}

void EventHub::SendState(v1::WorkerState::State state, const std::string& detail) {
  state_.set_state(state);
  state_.set_detail(detail);
  v1::WorkerEvent event;
  *event.mutable_state() = state_;
  SendAll(event);
}

void EventHub::BeginAnew(std::string incarnation, const absl::Status& why) {
  incarnation_ = std::move(incarnation);
  for (const Watcher& watcher : watchers_) watcher.sink->End(why);
  watchers_.clear();
}

v1::Load EncodeLoad(const engine::SchedulerLoad& load) {
  v1::Load out;
  out.set_running(load.running_sequences);
  out.set_waiting(load.waiting_requests);
  out.set_unread(load.unread_sequences);
  out.set_queued_tokens(load.waiting_tokens + load.prefill_tokens_left);
  if (!load.used_blocks.empty()) {
    out.set_kv_blocks_used(load.used_blocks[0]);
    out.set_kv_blocks_total(load.total_blocks[0]);
  }
  out.set_kv_blocks_shared(load.shared_blocks);
  out.set_kv_empty_tokens(load.empty_tokens);
  out.mutable_steps_by_tokens()->Add(load.step_sizes.steps.begin(), load.step_sizes.steps.end());
  out.set_step_tokens(load.step_sizes.tokens);
  out.set_steps(static_cast<uint64_t>(load.steps));
  out.set_predicted_step_ms(Milliseconds(load.predicted_step));
  out.set_prefix_queries_tokens(load.prompt_tokens);
  out.set_prefix_hits_tokens(load.cached_tokens);
  out.set_preemptions(load.preemptions);
  out.set_prompt_tokens(load.prompt_tokens);
  out.set_generation_tokens(load.generated_tokens);
  return out;
}

v1::GrammarLoad EncodeGrammars(const engine::GrammarPoolCounts& counts) {
  v1::GrammarLoad out;
  out.set_following(counts.following);
  out.set_known(counts.known);
  out.set_compiled(counts.compiled);
  out.set_refused(counts.refused);
  out.set_compile_seconds(Seconds(counts.compile_time));
  out.set_masks(counts.masks);
  out.set_masks_late(counts.masks_late);
  out.set_masks_slow(counts.masks_slow);
  out.set_mask_seconds(Seconds(counts.mask_time));
  out.set_wait_seconds(Seconds(counts.wait_time));
  return out;
}

}  // namespace baton::worker
