// Executor: one thread that runs closures and timers in order. State that belongs to an executor needs no lock.
// The io threads of the HTTP server are executors; a request lives on one of them from arrival to its last byte.
#pragma once

#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "common/clock.h"

namespace baton::router {

/// One pending call at most. Used on its executor's thread only; the destructor cancels.
class ExecutorTimer {
 public:
  virtual ~ExecutorTimer() = default;
  /// Replaces what was armed. `fn` runs on the executor's thread, never inside this call.
  virtual void ArmAt(TimePoint at, absl::AnyInvocable<void()> fn) = 0;
  virtual void Cancel() = 0;
};

class Executor {
 public:
  virtual ~Executor() = default;
  /// Any thread. Closures posted by one thread run in the order they were posted.
  virtual void Post(absl::AnyInvocable<void()> fn) = 0;
  virtual std::unique_ptr<ExecutorTimer> MakeTimer() = 0;
  virtual bool RunningHere() const = 0;
};

/// A fixed set of executors, one thread each.
class ExecutorPool {
 public:
  explicit ExecutorPool(size_t threads);
  ~ExecutorPool();  ///< stops
  ExecutorPool(const ExecutorPool&) = delete;
  ExecutorPool& operator=(const ExecutorPool&) = delete;

  size_t size() const;
  Executor& at(size_t i);
  /// The next one in turn. Any thread.
  Executor& Next();
  /// Drops what is queued and joins the threads. Idempotent.
  void Stop();

 private:
  friend struct ExecutorPoolAccess;  // asio_executor.h
  struct Threads;
  std::unique_ptr<Threads> threads_;
};

}  // namespace baton::router
