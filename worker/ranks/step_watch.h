// Notices a step that does not end: on devices ranks wait for each other where no socket tells.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/own_time.h"

namespace baton::worker {

/// Thread: any.
class StepWatch {
 public:
  /// From now on a step may last `patience`. `running`: engine::StepChannel::running; null: none is watched.
  void Watch(std::shared_ptr<const std::atomic<uint64_t>> running, Duration patience);
  /// A RankLoss: the step that runs has lasted longer, by the time that this was asked in (common/own_time.h).
  absl::Status Health();

 private:
  std::mutex mutex_;
  std::shared_ptr<const std::atomic<uint64_t>> running_;
  Duration patience_{};
  SteadyClock clock_;
  OwnTime own_{clock_.Now()};
  uint64_t seen_ = 0;  ///< the step that ran when it was asked last; 0: none
  TimePoint since_{};
};

}  // namespace baton::worker
