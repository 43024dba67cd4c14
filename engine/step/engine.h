// A worker's engine: the scheduler thread, which decides, and the executor thread, which computes one step at a time.
//
// Everything comes in as a task: any thread posts it, the scheduler thread runs it within 1 ms even while a step is
// computed. Tasks are not counted here: each poster bounds the number that it has under way (docs/threads.md).
//   tasks → [posted, behind] → scheduler thread → [2 plans] → executor thread → its result, a task
// Callbacks come on the scheduler thread, must not block, and may post.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "common/clock.h"
#include "engine/step/executor.h"
#include "engine/step/scheduler.h"

namespace baton::engine {

/// The outputs and cache events of one turn of the scheduler thread. Either list may be empty.
struct EngineOutputs {
  std::vector<SequenceOutput> sequences;
  KvEvents kv;
  uint64_t step = 0;  ///< the last committed step: the progress signal
};

struct EngineOptions {
  SchedulerOptions scheduler;
  KvCache::Options cache;
  bool plan_ahead =
      false;  ///< a step is planned while the one before it runs, where that can be (Scheduler::PlanAhead)
};

/// The parts that an engine works with. All of them outlive the engine.
struct EngineParts {
  Model& model;
  KvMemory& memory;
  kernels::Ops& ops;
  const PrefixHasher& hasher;
  const Clock& clock;
  RolePolicy* policy = nullptr;       ///< null: `--role both`
  LayerObserver* observer = nullptr;  ///< may be null
  GrammarPool* grammars = nullptr;    ///< null: requests with a grammar are refused. Calls OnReady.
  StepChannel* channel = nullptr;     ///< to the other ranks; null: there are none. Its owner ends it after Shutdown.
};

class Engine {
 public:
  /// On the scheduler thread, with the scheduler to itself.
  using OutputCallback = std::function<void(EngineOutputs, Scheduler&)>;
  /// Runs on the scheduler thread with the scheduler to itself.
  using Task = std::function<void(Scheduler&, TimePoint now)>;

  /// Starts both threads.
  Engine(const EngineOptions& options, const EngineParts& parts, OutputCallback on_outputs);
  /// Shutdown, if it was not called.
  ~Engine();

  /// Tasks run in the order in which they were posted. False: the engine is down, and the task was dropped.
  bool Post(Task task);
  /// The same, behind all that has been posted when its turn comes: what looks at the clock and ends what nobody
  /// renewed must not overtake the renewals.
  bool PostBehind(Task task);
  /// Calls `idle` once no request lives; on the caller's thread when the engine is down.
  void WhenIdle(std::function<void()> idle);
  /// Another role's from now on; null as in EngineParts. In a task, while no request lives.
  void UseRole(RolePolicy* policy, LayerObserver* observer);
  /// Cancels everything, delivers the aborts, runs what was posted and joins both threads. Idempotent. Not from a
  /// callback.
  void Shutdown();

 private:
  class Threads;
  std::unique_ptr<Threads> threads_;
};

}  // namespace baton::engine
