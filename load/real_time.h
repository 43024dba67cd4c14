// A thread that runs before everything else on its core while it measures, so that requests leave when they are due on
// a machine that others use too.
#pragma once

#include <optional>

namespace baton::load {

/// While it lives, the thread that made it has the lowest real-time priority (SCHED_RR); threads and processes that it
/// starts have the usual one. Of one thread.
class RealTime {
 public:
  /// Where the system does not allow it (RLIMIT_RTPRIO, CAP_SYS_NICE), or it is not `wanted`, nothing is changed.
  explicit RealTime(bool wanted);
  ~RealTime();
  RealTime(const RealTime&) = delete;
  RealTime& operator=(const RealTime&) = delete;

  bool granted() const { return policy_.has_value(); }

 private:
  std::optional<int> policy_;  ///< as it was
};

}  // namespace baton::load
