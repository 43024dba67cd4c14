// EventLoop: one thread that runs closures and timers in order. State that belongs to an loop needs no lock.
// The io threads of the HTTP server are loops; a request lives on one of them from arrival to its last byte.
#pragma once

#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "common/clock.h"

namespace baton::router {

/// One pending call at most. Used on its loop's thread only; the destructor cancels.
class EventLoopTimer {
 public:
  virtual ~EventLoopTimer() = default;
  /// Replaces the time and function that were armed before. `fn` runs on the loop's thread, never inside this call.
  virtual void ArmAt(TimePoint at, absl::AnyInvocable<void()> fn) = 0;
  virtual void Cancel() = 0;
};

class EventLoop {
 public:
  virtual ~EventLoop() = default;
  /// Any thread. Closures posted by one thread run in the order they were posted.
  virtual void Post(absl::AnyInvocable<void()> fn) = 0;
  virtual std::unique_ptr<EventLoopTimer> MakeTimer() = 0;
  virtual bool RunningHere() const = 0;
};

/// A fixed set of loops, one thread each.
class EventLoopPool {
 public:
  explicit EventLoopPool(size_t threads);
  ~EventLoopPool();  ///< stops
  EventLoopPool(const EventLoopPool&) = delete;
  EventLoopPool& operator=(const EventLoopPool&) = delete;

  size_t size() const;
  EventLoop& at(size_t i);
  /// The next one in turn. Any thread.
  EventLoop& Next();
  /// Drops the queued work and joins the threads. Idempotent.
  void Stop();

 private:
  friend struct EventLoopPoolAccess;  // asio_event_loop.h
  struct Threads;
  std::unique_ptr<Threads> threads_;
};

}  // namespace baton::router
