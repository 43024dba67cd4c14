// A worker's engine: the scheduler thread and the executor thread, joined by bounded queues.
//
// Any thread may call the messages; they are queued and answered by the scheduler thread, in ≤ 1 ms even while a step
// runs. Callbacks come on the scheduler thread, must not block, and may post further messages.
//   messages → [inbox, EngineOptions::max_messages; full: ResourceExhausted at once] → scheduler thread
//   scheduler thread → [1 plan] → executor thread → [1 result, always room] → scheduler thread
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "engine/step/executor.h"
#include "engine/step/scheduler.h"

namespace baton::engine {

/// What one turn of the scheduler thread made visible. Either list may be empty.
struct EngineOutputs {
  std::vector<SequenceOutput> sequences;
  KvEvents kv;
  uint64_t step = 0;  ///< the last committed step: the progress signal
};

struct EngineOptions {
  SchedulerOptions scheduler;
  KvCache::Options cache;
  int32_t max_messages = 4096;
};

class Engine {
 public:
  using Answer = std::function<void(absl::Status)>;
  /// On the scheduler thread, with the scheduler to itself.
  using OutputCallback = std::function<void(EngineOutputs, Scheduler&)>;
  /// Runs on the scheduler thread with the scheduler to itself: what a role adds (tickets, snapshots).
  using Task = std::function<void(Scheduler&, TimePoint now)>;

  /// Starts both threads. All arguments must outlive the engine; `policy` (`--role both`) and `observer` may be null,
  /// and `channel` is where there are no other ranks. Its owner ends it after Shutdown.
  Engine(const EngineOptions& options, Model& model, KvMemory& memory, kernels::Ops& ops, const PrefixHasher& hasher,
         const Clock& clock, RolePolicy* policy, OutputCallback on_outputs, LayerObserver* observer = nullptr,
         StepChannel* channel = nullptr);
  /// Shutdown, if it was not called.
  ~Engine();

  /// `answer` gets AddRequest's status; on the caller's thread when the inbox is full or the engine drains or is down.
  void Submit(Request request, Answer answer);
  void Attach(AttachedRequest attached, Answer answer);
  /// `answer` gets OK, or NotFound when the request has ended. Never refused: an abort storm is bounded by the
  /// requests.
  void Cancel(RequestKey key, Answer answer);
  void CancelSequence(RequestKey key, uint32_t sequence_index, Answer answer);
  void Credit(RequestKey key, uint32_t sequence_index, int32_t position);
  /// `answer` gets the load as of the scheduler thread's turn.
  void Stats(std::function<void(const SchedulerLoad&)> answer);
  /// Never refused.
  void Post(Task task);
  /// The same, behind all that has been posted when its turn comes: what looks at the clock and ends what nobody
  /// renewed must not overtake the renewals.
  void PostBehind(Task task);
  /// Refuses new requests from now on (Unavailable); `drained` is called once none lives.
  void Drain(std::function<void()> drained);
  /// Cancels everything, delivers the aborts and joins both threads. Idempotent. Not from a callback.
  void Shutdown();

 private:
  class Threads;
  std::unique_ptr<Threads> threads_;
};

}  // namespace baton::engine
