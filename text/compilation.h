// A grammar that is compiled beside everything else: on a thread of its own, which has the process's priority for a
// moment, long enough for nearly every grammar, and a low one from then on. So a grammar that takes long
// delays no neighbour's tokens, and whoever waits for it may give it up.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "text/grammar.h"

namespace baton {

/// Its methods are of one thread.
class Compilation {
 public:
  using Result = absl::StatusOr<std::unique_ptr<GrammarMatcher>>;

  /// Begins. `ended` is called on the thread that compiled, once there is a result.
  Compilation(std::shared_ptr<const GrammarCompiler> compiler, Grammar grammar, std::function<void()> ended = nullptr);
  /// Waits for its end: nothing can stop a compiler.
  ~Compilation();

  /// False: there was no result by `until`.
  bool Wait(TimePoint until);
  /// How long its thread has run on a core, where Wait was false.
  Duration WorkedFor();
  /// Once, when Wait was true.
  Result Take();
  /// It took, or has taken by now, more than a moment, where somebody waited for it.
  bool TookLong();

 private:
  static constexpr Duration kMoment = std::chrono::milliseconds(30);

  void Run();
  void StandBack();  ///< with the mutex

  const std::shared_ptr<const GrammarCompiler> compiler_;
  const Grammar grammar_;
  const std::function<void()> ended_;
  const TimePoint begun_ = SteadyClock().Now();
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  pid_t thread_id_ = 0;       ///< 0: it has not begun, or its end is near
  bool stands_back_ = false;  ///< or is to, once it begins
  bool done_ = false;
  Result result_{nullptr};
  std::thread thread_;  // last: it uses the above
};

}  // namespace baton
