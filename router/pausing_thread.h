// PausingThread: a thread that works, pauses, and ends at once when it is told to: of a source of workers, of what is
// sent to a collector.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "common/clock.h"

namespace baton::router {

class PausingThread {
 public:
  ~PausingThread() { Stop(); }

  void Start(std::function<void()> run) { thread_ = std::thread(std::move(run)); }
  /// Its thread's: waits for so long. False: it is to end, and does not wait.
  bool Pause(Duration duration) {
    std::unique_lock lock(mutex_);
    return !changed_.wait_for(lock, duration, [this] { return stopping_; });
  }
  bool stopping() const {
    std::lock_guard lock(mutex_);
    return stopping_;
  }
  /// Ends it and waits for that; `wake` ends what it waits for elsewhere. Idempotent.
  void Stop(const std::function<void()>& wake = nullptr) {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (wake) wake();
    if (thread_.joinable()) thread_.join();
  }

 private:
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace baton::router
