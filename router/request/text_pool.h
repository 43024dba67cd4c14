// TextPool: a few threads for templates and tokenization of long texts, which would stall an io thread. Bounded queue.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"

namespace baton::router {

/// Texts up to this many bytes are worked on in place.
inline constexpr size_t kShortTextBytes = 4096;

/// Thread-safe.
class TextPool {
 public:
  TextPool(size_t threads, size_t max_queued);
  ~TextPool();  ///< drops the queued work

  /// False: the queue is full, `fn` was not taken.
  bool TryRun(absl::AnyInvocable<void()> fn);
  size_t queued() const;
  void Stop();

 private:
  void Loop();

  const size_t max_queued_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<absl::AnyInvocable<void()>> queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace baton::router
