// A grammar that is compiled beside everything else: on a thread of its own, which has the process's priority for a
// moment, long enough for nearly every grammar, and a low one from then on. So a grammar that takes long
// delays no neighbour's tokens, and whoever waits for it may give it up. The thread takes no lock: nobody waits for one
// that is held by a thread of low priority.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/semaphore.h"
#include "text/grammar.h"

namespace baton {

/// Its methods are of one thread.
class Compilation {
 public:
  using Result = absl::StatusOr<std::unique_ptr<GrammarMatcher>>;
  /// What is wanted of a grammar that compiles: its matcher, or to know that it does (a null one; the compiling thread
  /// gives back what it found, some ten thousand pieces of memory of a costly one).
  enum class Wanted { kMatcher, kToKnow };
  static constexpr Duration kMoment = std::chrono::milliseconds(30);

  /// Begins. `ended` is called on the thread that compiled, once there is a result; it takes no lock. `moment`: how
  /// long it has the process's priority.
  Compilation(std::shared_ptr<const GrammarCompiler> compiler, Grammar grammar, std::function<void()> ended = nullptr,
              Wanted wanted = Wanted::kMatcher, Duration moment = kMoment);
  /// Waits for its end: nothing can stop a compiler.
  ~Compilation();

  /// False: there was no result by `until`. It stands back when a moment is over, and when it is given up.
  bool Wait(TimePoint until);
  /// There is a result.
  bool Ended() const { return has_result_; }
  /// Its thread has nothing left to do: destroying this takes no time.
  bool Over() const { return over_; }
  /// The end of its moment, when whoever does not wait calls StandBack.
  TimePoint moment_ends() const { return begun_ + moment_; }
  void StandBack();
  /// How long its thread has run on a core, until there was a result at most.
  Duration WorkedFor();
  /// Once, when it has ended.
  Result Take() { return std::move(result_); }
  /// It took, or has taken by now, more than a moment, where somebody waited for it.
  bool TookLong() const { return stands_back_; }

 private:
  enum class Phase { kRuns, kIsMoved, kLeaves };

  void Run();
  void End(Result result);

  const std::shared_ptr<const GrammarCompiler> compiler_;
  const Grammar grammar_;
  const std::function<void()> ended_;
  const Wanted wanted_;
  const Duration moment_;
  const TimePoint begun_ = SteadyClock().Now();
  std::atomic<pid_t> thread_id_{0};         ///< 0: it has not begun
  std::atomic<bool> stands_back_{false};    ///< or is to, once it begins
  std::atomic<Phase> phase_{Phase::kRuns};  ///< its thread is there while this is not kLeaves
  Result result_{nullptr};                  ///< the compiling thread's until has_result_, as is the next one
  Duration worked_{};
  std::atomic<bool> has_result_{false}, over_{false};
  Semaphore result_is_there_;
  std::thread thread_;  // last: it uses the above
};

}  // namespace baton
