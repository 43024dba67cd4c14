// OwnTime: the time that a listener has really listened. Silence of a peer is judged by it, never by the plain clock:
// a process that was stopped, throttled or suspended finds on waking that "nothing came" for seconds, although it was
// the listener that stood still. Own promises (deadlines, expiry) run on the plain clock.
//
//   every ~100 ms, after the inbox was read:  own.Tick(clock.Now());
//   a message of the peer came:               heard = own.Now();
//   the peer is silent:                       own.Now() - heard > limit
#pragma once

#include <algorithm>

#include "common/clock.h"

namespace baton {

/// Not thread-safe.
class OwnTime {
 public:
  /// How often a listener ticks, and what one tick counts at most.
  static constexpr Duration kTick = std::chrono::milliseconds(100);
  static constexpr Duration kMostPerTick = std::chrono::milliseconds(300);

  explicit OwnTime(TimePoint now) : last_(now), own_(now) {}
  /// Counts from its first tick on, from zero.
  OwnTime() : last_(TimePoint::max()) {}
  /// Returns what was counted: the time since the tick before, at most kMostPerTick.
  Duration Tick(TimePoint now) {
    const Duration counted = Skip(now);
    own_ += counted;
    return counted;
  }
  /// Nobody has listened since the tick before: what came lies where the system keeps it. Returns what Tick would have
  /// counted.
  Duration Skip(TimePoint now) {
    const Duration passed = std::clamp(now - last_, Duration::zero(), kMostPerTick);
    last_ = now;
    return passed;
  }
  TimePoint Now() const { return own_; }

 private:
  TimePoint last_;  ///< of the plain clock
  TimePoint own_{};
};

}  // namespace baton
