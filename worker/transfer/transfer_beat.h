// How often a role's tick, which comes a hundred times a second, goes on to its transfer thread: each wakes that
// thread, and those of its ranks. What waits there for time to go by (self-tests, figures) counts in seconds.
// Thread: the scheduler's.
#pragma once

#include "common/clock.h"
#include "common/own_time.h"

namespace baton::worker {

class TransferBeat {
 public:
  static constexpr Duration kEvery = OwnTime::kTick;

  /// Whether this tick goes on.
  bool Due(TimePoint now) {
    if (now < next_) return false;
    next_ = now + kEvery;
    return true;
  }

 private:
  TimePoint next_{};
};

}  // namespace baton::worker
