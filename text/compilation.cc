#include "text/compilation.h"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "common/thread_priority.h"

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
    thread_id_ = ThisThread();
    if (stands_back_) StandBack();
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
  if (!stands_back_) StandBack();
  return changed_.wait_until(lock, until, done);
}

Duration Compilation::WorkedFor() {
  clockid_t clock;
  timespec worked{};
  if (pthread_getcpuclockid(thread_.native_handle(), &clock) != 0 || clock_gettime(clock, &worked) != 0) return {};
  return std::chrono::duration_cast<Duration>(std::chrono::seconds(worked.tv_sec) +
                                              std::chrono::nanoseconds(worked.tv_nsec));
}

void Compilation::StandBack() {
  stands_back_ = true;
  if (thread_id_ != 0) baton::StandBack(thread_id_);
}

bool Compilation::TookLong() {
  std::lock_guard lock(mutex_);
  return stands_back_;
}

Compilation::Result Compilation::Take() {
  std::lock_guard lock(mutex_);
  return std::move(result_);
}

}  // namespace baton
