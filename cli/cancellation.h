// Ends a call from another thread. Any thread.
#pragma once

#include <functional>
#include <mutex>
#include <utility>

namespace baton::cli {

class Cancellation {
 public:
  /// `how` ends the call that runs now; it is called at once when the end was asked for before. Empty: nothing runs.
  void Set(std::function<void()> how) {
    std::lock_guard lock(mutex_);
    how_ = std::move(how);
    if (cancelled_ && how_) how_();
  }
  void Cancel() {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
    if (how_) how_();
  }
  bool cancelled() const {
    std::lock_guard lock(mutex_);
    return cancelled_;
  }

 private:
  mutable std::mutex mutex_;
  std::function<void()> how_;
  bool cancelled_ = false;
};

}  // namespace baton::cli
