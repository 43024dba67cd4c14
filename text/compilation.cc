#include "text/compilation.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace baton {

Compilation::Compilation(std::shared_ptr<const GrammarCompiler> compiler, Grammar grammar, std::function<void()> ended)
    : compiler_(std::move(compiler)),
      grammar_(std::move(grammar)),
      ended_(std::move(ended)),
      thread_([this] { Run(); }) {}

Compilation::~Compilation() { thread_.join(); }

void Compilation::Run() {
  {
    std::lock_guard lock(mutex_);
    thread_id_ = static_cast<pid_t>(syscall(SYS_gettid));
    if (lowered_) LowerPriority();
  }
  Result result = compiler_->Compile(grammar_.kind, grammar_.text);
  {
    std::lock_guard lock(mutex_);
    thread_id_ = 0;
    result_ = std::move(result);
    done_ = true;
    changed_.notify_all();  // under the lock: behind it this may be gone
  }
  if (ended_) ended_();
}

bool Compilation::Wait(TimePoint until) {
  std::unique_lock lock(mutex_);
  const auto done = [this] { return done_; };
  if (changed_.wait_until(lock, std::min(until, begun_ + kMoment), done)) return true;
  if (!lowered_) LowerPriority();
  return changed_.wait_until(lock, until, done);
}

Duration Compilation::WorkedFor() {
  clockid_t clock;
  timespec worked{};
  if (pthread_getcpuclockid(thread_.native_handle(), &clock) != 0 || clock_gettime(clock, &worked) != 0) return {};
  return std::chrono::duration_cast<Duration>(std::chrono::seconds(worked.tv_sec) +
                                              std::chrono::nanoseconds(worked.tv_nsec));
}

// Linux has a priority for each thread; a higher number is a lower one.
void Compilation::LowerPriority() {
  lowered_ = true;
  if (thread_id_ == 0) return;
  const auto thread = static_cast<id_t>(thread_id_);
  if (getpriority(PRIO_PROCESS, thread) < kLowPriority) setpriority(PRIO_PROCESS, thread, kLowPriority);
}

Compilation::Result Compilation::Take() {
  std::lock_guard lock(mutex_);
  return std::move(result_);
}

}  // namespace baton
