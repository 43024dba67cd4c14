// TextPool: a few threads for templates and tokenization of long texts, which would stall an io thread. Bounded queue;
// owners take turns, so that nobody waits behind all that another has sent.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
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

  /// Of each owner the oldest in turn. False: the queue is full, or half of it is this owner's, who has a name; `fn`
  /// was not taken.
  bool TryRun(const std::string& owner, absl::AnyInvocable<void()> fn);
  size_t queued() const;
  void Stop();

 private:
  using Line = std::deque<absl::AnyInvocable<void()>>;
  void Loop();
  absl::AnyInvocable<void()> TakeNext();

  const size_t max_queued_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::map<std::string, Line> lines_;  // by owner, none empty
  std::deque<std::string> turns_;      // owners of lines, each once
  size_t queued_ = 0;                  // in all lines
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace baton::router
