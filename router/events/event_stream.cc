#include "router/events/event_stream.h"

#include <algorithm>
#include <vector>

#include "common/str_cat.h"
#include "router/json_writer.h"

namespace baton::router {
namespace {

constexpr size_t kMostEvents = 8192, kMostEventBytes = 4 << 20;
constexpr size_t kFinishedKept = 64;

}  // namespace

EventStream::EventStream(const Clock& clock, int64_t unix_ms_now, Sources sources)
    : clock_(clock),
      start_(clock.Now()),
      unix_ms_start_(static_cast<double>(unix_ms_now)),
      sources_(std::move(sources)),
      book_(kMostEvents, kMostEventBytes) {}

std::unique_ptr<RequestTrail> EventStream::Begin(const std::string& id, TimePoint arrived) {
  if (!watched()) {
    std::lock_guard lock(mutex_);
    if (!unseen_.Take(arrived)) return nullptr;
  }
  return std::make_unique<RequestTrail>(*this, id, arrived);
}

void EventStream::Add(RequestTrail& trail) {
  std::lock_guard lock(mutex_);
  live_.insert(&trail);
}

void EventStream::Remove(RequestTrail& trail) {
  std::lock_guard lock(mutex_);
  live_.erase(&trail);
}

void EventStream::Publish(std::string event, absl::FunctionRef<void()> under_lock) {
  std::lock_guard lock(mutex_);
  under_lock();
  if (watched()) book_.Append(std::move(event));
}

void EventStream::Note(absl::FunctionRef<void()> under_lock) {
  std::lock_guard lock(mutex_);
  under_lock();
}

void EventStream::Keep(const std::string& finished) {
  std::lock_guard lock(mutex_);
  finished_.push_back(finished);
  if (finished_.size() > kFinishedKept) finished_.pop_front();
}

void EventStream::Moved(const std::string& prefill, const std::string& decode, int64_t bytes) {
  if (!watched()) return;
  std::lock_guard lock(mutex_);
  moved_[{prefill, decode}] += bytes;
}

bool EventStream::TakeTick(TimePoint now) {
  if (!watched()) return false;
  std::lock_guard lock(mutex_);
  return ticks_.Take(now);
}

std::string EventStream::Why(const TokenizedRequest& generation) {
  if (!watched() || !sources_.why) return "";
  {
    std::lock_guard lock(mutex_);
    if (!whys_.Take(Now())) return "";
  }
  return sources_.why(generation);
}

bool EventStream::Enter() {
  int readers = readers_.load();
  while (readers < kMostReaders) {
    if (readers_.compare_exchange_weak(readers, readers + 1)) return true;
  }
  return false;
}

void EventStream::Leave() {
  if (--readers_ > 0) return;
  std::lock_guard lock(mutex_);
  moved_.clear();
}

EventBook::Batch EventStream::Greeting() {
  std::string hello;
  JsonWriter w(hello);
  w.BeginObject().Field("event", "hello").Field("t", UnixMs(Now())).Field("version", sources_.version);
  w.Field("model", sources_.model).Field("policy", sources_.policy).EndObject();
  bool none = false;
  {
    std::lock_guard lock(mutex_);
    none = last_state_.empty() || Now() >= next_state_;
  }
  if (none) MakeState(Now());
  std::lock_guard lock(mutex_);
  EventBook::Batch batch{ServerSent(hello), book_.next(), 0};
  for (const std::string& finished : finished_) batch.text += ServerSent(finished);
  batch.text += ServerSent(last_state_);
  return batch;
}

EventBook::Batch EventStream::After(uint64_t next) {
  const TimePoint now = Now();
  bool due = false;
  {
    std::lock_guard lock(mutex_);
    due = now >= next_state_;
    if (due) next_state_ = now + kStateEvery;  // nobody else makes this one
  }
  if (due) MakeState(now);
  std::lock_guard lock(mutex_);
  EventBook::Batch batch = book_.From(next);
  if (batch.lost > 0) {
    batch.text.insert(0, ServerSent(StrCat(R"({"event":"lost","t":)", UnixMs(now), R"(,"events":)", batch.lost, "}")));
  }
  return batch;
}

// The request that has run longest comes first.
void EventStream::MakeState(TimePoint now) {
  std::lock_guard making(state_mutex_);
  const ClusterFacts facts = sources_.cluster();
  Traffic traffic;
  {
    std::lock_guard lock(mutex_);
    for (const RequestTrail* trail : live_) {
      if (!trail->ended_) traffic.live.push_back(trail->live_);
    }
    traffic.moved = std::exchange(moved_, {});
  }
  std::ranges::sort(traffic.live, {}, &LiveRequest::arrived);
  std::string event = state_.Build(facts, traffic, now, UnixMs(now));
  std::lock_guard lock(mutex_);
  last_state_ = event;
  next_state_ = now + kStateEvery;
  book_.Append(std::move(event));
}

}  // namespace baton::router
