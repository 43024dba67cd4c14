// EventStream: what happens in the router, for those who look: requests as they pass their stages, and the cluster's
// state once a second. Nobody who looks holds up a request: events go into a bounded book (event_book.h), from which
// readers take at their own pace. While nobody looks, some requests a second leave a trail all the same, so that the
// last ones are there for whoever comes to see what was slow. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "common/clock.h"
#include "router/events/cluster_state.h"
#include "router/events/event_book.h"
#include "router/events/request_trail.h"

namespace baton::router {

class EventStream {
 public:
  /// Where the stream looks; all of it outlives the stream. Called on readers' threads, `why` on requests'.
  struct Sources {
    std::function<ClusterFacts()> cluster;
    std::function<std::string(const TokenizedRequest&)> why;  ///< the options of a choice, as JSON
    std::string version, model, policy;
  };
  EventStream(const Clock& clock, int64_t unix_ms_now, Sources sources);

  // ---- of requests, on their threads
  /// Null: this request leaves no trail.
  std::unique_ptr<RequestTrail> Begin(const std::string& id, TimePoint arrived);
  bool watched() const { return readers_.load(std::memory_order_relaxed) > 0; }

  // ---- of readers
  static constexpr int kMostReaders = 16;
  /// False: there are as many as may be. Each true is followed by a Leave.
  bool Enter();
  void Leave();
  /// What a reader hears first: who this is, the last requests, the state; and from which event it goes on.
  EventBook::Batch Greeting();
  /// What came since. The first of the readers who asks after a second has passed makes the next state.
  EventBook::Batch After(uint64_t next);

 private:
  friend class RequestTrail;
  static constexpr Duration kStateEvery = std::chrono::seconds(1);

  TimePoint Now() const { return clock_.Now(); }
  double UnixMs(TimePoint at) const { return unix_ms_start_ + Milliseconds(at - start_); }
  void Add(RequestTrail& trail);
  void Remove(RequestTrail& trail);
  /// `under_lock` changes the trail's LiveRequest.
  void Publish(std::string event, absl::FunctionRef<void()> under_lock);
  void Note(absl::FunctionRef<void()> under_lock);
  void Keep(const std::string& finished);
  void Moved(const std::string& prefill, const std::string& decode, int64_t bytes);
  bool TakeTick(TimePoint now);
  std::string Why(const TokenizedRequest& generation);
  void MakeState(TimePoint now);

  /// So many a second.
  struct Allowance {
    int per_second;
    TimePoint second{};
    int used = 0;
    bool Take(TimePoint now) {
      if (now - second >= std::chrono::seconds(1)) second = now, used = 0;
      return used++ < per_second;
    }
  };

  const Clock& clock_;
  const TimePoint start_;
  const double unix_ms_start_;
  const Sources sources_;
  std::atomic<int> readers_{0};

  std::mutex state_mutex_;  // of the one who makes a state; taken before mutex_
  ClusterState state_;      // guarded by it

  mutable std::mutex mutex_;  // guards what follows
  EventBook book_;
  std::deque<std::string> finished_;
  std::set<const RequestTrail*> live_;
  std::map<std::pair<std::string, std::string>, int64_t> moved_;  // bytes of KV since the last state
  Allowance unseen_{20}, ticks_{400}, whys_{20};
  std::string last_state_;
  TimePoint next_state_{};
};

}  // namespace baton::router
