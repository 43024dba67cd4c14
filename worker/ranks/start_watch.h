// Notices a start that stands still: a file, a GPU or another rank that does not answer, while nothing else would tell.
// Loading may take as long as it likes, as long as something moves.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/own_time.h"

namespace baton::worker {

/// Of a group of ranks, until all have started. Thread: any.
class StartWatch {
 public:
  /// What other processes have moved, and whom this one waits for; -1: nobody, or a thread.
  struct Others {
    uint64_t moved = 0;
    int waits_for = -1;
  };
  /// Nothing may move for `patience`. Ranks [0, ranks) tell of themselves by Note.
  StartWatch(int ranks, Duration patience) : patience_(patience), places_(static_cast<size_t>(ranks)) {}
  /// A rank of this process is in `phase`, and goes on.
  void Note(int rank, std::string_view phase, double fraction);
  /// The group has started, and is watched by others.
  void Over();
  /// A RankLoss that says where each rank was: nothing has moved, by the time that this was asked in.
  absl::Status Health(const Others& others);

 private:
  const Duration patience_;
  const SteadyClock clock_;
  std::mutex mutex_;  ///< guards what follows
  OwnTime own_{clock_.Now()};
  TimePoint since_ = own_.Now();  ///< the last that moved
  uint64_t noted_ = 0, seen_ = 0;
  bool over_ = false;
  absl::Status lost_;                ///< once it is
  std::vector<std::string> places_;  ///< by rank; empty: never heard of
};

}  // namespace baton::worker
