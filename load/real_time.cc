#include "load/real_time.h"

#include <sched.h>

namespace baton::load {

RealTime::RealTime(bool wanted) {
  const int policy = sched_getscheduler(0) & ~SCHED_RESET_ON_FORK;
  if (!wanted || policy == SCHED_FIFO || policy == SCHED_RR) return;
  sched_param lowest{};
  lowest.sched_priority = sched_get_priority_min(SCHED_RR);
  if (sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &lowest) == 0) policy_ = policy;
}

RealTime::~RealTime() {
  const sched_param usual{};
  // Who may not raise a priority may not take this flag away either.
  if (policy_) sched_setscheduler(0, *policy_ | SCHED_RESET_ON_FORK, &usual);
}

}  // namespace baton::load
