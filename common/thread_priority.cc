#include "common/thread_priority.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace baton {

pid_t ThisThread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

// Linux has a policy and a priority for each thread; a higher number is a lower priority.
void StandBack(pid_t thread) {
  constexpr int kLow = 10;
  const sched_param none{};
  sched_setscheduler(thread, SCHED_BATCH, &none);
  const auto id = static_cast<id_t>(thread);
  if (getpriority(PRIO_PROCESS, id) < kLow) setpriority(PRIO_PROCESS, id, kLow);
}

bool StandsBack() { return sched_getscheduler(0) == SCHED_BATCH; }

}  // namespace baton
