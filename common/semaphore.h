// Permissions that are given and taken. Whoever gives one holds no lock at any moment: a thread of low priority may
// give what one of a higher priority waits for. Behind a mutex that one would wait until others leave the low one a
// core. (std::counting_semaphore does not tell its count.)
#pragma once

#include <semaphore.h>
#include <time.h>

#include <cerrno>

#include "common/clock.h"

namespace baton {

/// Thread-safe. What was done before Give is seen behind Take, and not for sure behind TakeBy.
class Semaphore {
 public:
  explicit Semaphore(unsigned count = 0) { sem_init(&semaphore_, /*shared=*/0, count); }
  ~Semaphore() { sem_destroy(&semaphore_); }
  Semaphore(const Semaphore&) = delete;
  Semaphore& operator=(const Semaphore&) = delete;

  void Give() { sem_post(&semaphore_); }
  void Take() {
    while (sem_wait(&semaphore_) != 0) continue;  // a signal came
  }
  /// False: there was none by `until`.
  bool TakeBy(TimePoint until) {
    const auto since_boot = until.time_since_epoch();
    const auto seconds = std::chrono::floor<std::chrono::seconds>(since_boot);
    const timespec at{.tv_sec = seconds.count(), .tv_nsec = (since_boot - seconds).count()};
    int failed = 0;
    while ((failed = sem_clockwait(&semaphore_, CLOCK_MONOTONIC, &at)) != 0 && errno == EINTR) continue;
    return failed == 0;
  }
  /// How many there are at this moment.
  int count() {
    int count = 0;
    sem_getvalue(&semaphore_, &count);
    return count;
  }

 private:
  sem_t semaphore_;
};

}  // namespace baton
