// Starts the processes of `baton serve`, restarts workers that die, and stops everything in order.
//
// Children are started by posix_spawn before any gRPC object exists here, in process groups of their own (Ctrl-C
// reaches the supervisor only), get SIGTERM when the supervisor dies, and are reaped at once.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"

namespace baton::cli {

struct ChildSpec {
  std::string name;               ///< "router", "worker-0"
  std::vector<std::string> argv;  ///< without the program: `baton` itself is run
  bool restart = false;           ///< restarted when it dies; otherwise its death ends the supervisor
};

class Supervisor {
 public:
  explicit Supervisor(const Clock& clock) : clock_(clock) {}
  ~Supervisor();  ///< kills what is left
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  /// Starts a child. Stop order is the reverse of start order.
  absl::Status Start(ChildSpec spec);

  /// Runs until SIGINT or SIGTERM (then stops all children, last started first, each with `grace` to drain), or until a
  /// child that is not restarted ends. A second signal kills at once. Returns the exit code for the process.
  int Run(Duration grace);

 private:
  struct Child {
    ChildSpec spec;
    pid_t pid = -1;  ///< -1: not running
    Duration backoff{};
    TimePoint started{};
    std::optional<TimePoint> restart_at;
    int failure_pipe = -1;  ///< read end: the child's own words about why it failed
  };

  absl::Status Spawn(Child& child);
  /// Collects ended children. Returns the exit code when one that must live has ended, and keeps its message.
  std::optional<int> Reap();
  void RestartDue();
  std::optional<Duration> NextRestart() const;
  void StopAll(Duration grace);

  const Clock& clock_;
  std::vector<Child> children_;
  std::string failure_;
  bool stopping_ = false;  ///< children that end now are meant to
};

/// Exit code of a wait status: the code, or 128 + signal.
int ExitCodeOfWaitStatus(int wait_status);

}  // namespace baton::cli
