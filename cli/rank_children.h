// Ranks that this process has started as processes of their own (`baton rank`). They die with its main thread, whatever
// ends it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "worker/worker_config.h"

namespace baton::cli {

/// What `baton rank` finds in its environment.
inline constexpr const char* kRankSecretVariable = "BATON_RANK_SECRET";

/// The main thread's.
class RankChildren {
 public:
  /// `arguments`: the worker's flags, which are the ranks' too.
  RankChildren(const worker::WorkerConfig& config, std::vector<std::string> arguments)
      : config_(config), arguments_(std::move(arguments)) {}
  /// Kills those that still live.
  ~RankChildren();

  /// Starts rank `rank`, which meets the others at `meet`. `secret`: of ranks of one machine; empty: it reads
  /// --cluster-secret-file. Unavailable: it cannot be started.
  absl::Status Start(int rank, const std::string& meet, const std::string& secret);
  /// A RankLoss: one has ended, and how. `causes_only`: not one that ended because rank 0 told it to, or because
  /// another rank was lost, which a pulse tells.
  absl::Status Health(bool causes_only);
  /// Waits until all have ended, or `within` is over.
  void Await(Duration within);
  /// Waits for a loss that is a cause, as Health(true) tells it; OK: none within `within`.
  absl::Status AwaitCause(Duration within);

 private:
  struct Process {
    int rank = 0;
    pid_t pid = -1;
    bool ended = false;
    int status = 0;
  };
  /// True: all have ended.
  bool Reap();

  const worker::WorkerConfig config_;
  const std::vector<std::string> arguments_;
  std::vector<Process> processes_;
};

}  // namespace baton::cli
