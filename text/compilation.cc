#include "text/compilation.h"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "common/thread_priority.h"

namespace baton {

namespace {

/// Zero: there is no such clock any more.
Duration TimeOf(clockid_t clock) {
  timespec worked{};
  if (clock_gettime(clock, &worked) != 0) return {};
  return std::chrono::duration_cast<Duration>(std::chrono::seconds(worked.tv_sec) +
                                              std::chrono::nanoseconds(worked.tv_nsec));
}

}  // namespace

Compilation::Compilation(std::shared_ptr<const GrammarCompiler> compiler, Grammar grammar, std::function<void()> ended,
                         Wanted wanted, Duration moment)
    : compiler_(std::move(compiler)),
      grammar_(std::move(grammar)),
      ended_(std::move(ended)),
      wanted_(wanted),
      moment_(moment),
      thread_([this] { Run(); }) {}

Compilation::~Compilation() { thread_.join(); }

void Compilation::Run() {
  thread_id_ = ThisThread();
  if (stands_back_) baton::StandBack(thread_id_);  // it was given up before it began
  End(compiler_->Compile(grammar_.kind, grammar_.text));
  over_ = true;
}

void Compilation::End(Result result) {
  for (Phase runs = Phase::kRuns; !phase_.compare_exchange_weak(runs, Phase::kLeaves); runs = Phase::kRuns)
    std::this_thread::yield();  // two calls of the kernel
  std::unique_ptr<GrammarMatcher> unwanted;
  if (wanted_ == Wanted::kToKnow && result.ok()) unwanted = std::move(*result);
  result_ = std::move(result);
  worked_ = TimeOf(CLOCK_THREAD_CPUTIME_ID);
  has_result_ = true;
  result_is_there_.Give();
  if (ended_) ended_();
}

bool Compilation::Wait(TimePoint until) {
  if (Ended()) return true;
  result_is_there_.TakeBy(std::min(until, moment_ends()));
  if (Ended()) return true;
  StandBack();
  result_is_there_.TakeBy(until);
  return Ended();
}

Duration Compilation::WorkedFor() {
  clockid_t clock;
  const Duration so_far = pthread_getcpuclockid(thread_.native_handle(), &clock) == 0 ? TimeOf(clock) : Duration();
  return Ended() ? worked_ : so_far;
}

// Either this sees the thread's id, or the thread sees that it is to stand back.
void Compilation::StandBack() {
  if (stands_back_.exchange(true)) return;
  Phase runs = Phase::kRuns;
  if (thread_id_ == 0 || !phase_.compare_exchange_strong(runs, Phase::kIsMoved)) return;
  baton::StandBack(thread_id_);
  phase_ = Phase::kRuns;
}

}  // namespace baton
