// Starts the processes of `baton serve`, restarts those that die, and stops everything in order.
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
  bool front = false;             ///< stopped before the others, which do its work until then
};

class Supervisor {
 public:
  explicit Supervisor(const Clock& clock) : clock_(clock) {}
  ~Supervisor();  ///< kills what is left
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  /// Starts a child.
  absl::Status Start(ChildSpec spec);

  /// Runs until SIGINT or SIGTERM (then stops all children, the front first, then the others at once, both with `grace`
  /// to drain), or until a child ends that is not restarted, or that no restart can help. A second signal kills at
  /// once; a child that is itself stopped (SIGSTOP) is killed, not waited for. Returns the exit code for the process:
  /// kExitCutOff when a drain ran out of time.
  int Run(Duration grace);

 private:
  struct Child {
    ChildSpec spec;
    pid_t pid = -1;  ///< -1: not running
    Duration backoff{};
    int starts = 0;
    TimePoint started{};
    std::optional<TimePoint> restart_at;
    int failure_pipe = -1;  ///< read end: the child's own words about why it failed
  };

  absl::Status Spawn(Child& child);
  /// Collects ended children. Returns the exit code when one that must live has ended, and keeps its message.
  std::optional<int> Reap();
  /// Whether the supervisor ends with this child, which ended with `code`; otherwise it is restarted.
  bool EndsAll(const Child& child, int code) const;
  void RestartDue();
  std::optional<Duration> NextRestart() const;
  void StopAll(Duration grace);
  /// Ends the children whose front is `front`. `at_once` becomes true when a second signal asks for that.
  void StopSome(bool front, Duration grace, bool& at_once);
  bool Running(bool front) const;
  void KillFrozen();

  const Clock& clock_;
  std::vector<Child> children_;
  std::string failure_;
  bool stopping_ = false;  ///< children that end now are meant to
  bool cut_off_ = false;   ///< a drain ran out of time
};

/// Exit code of a wait status: the code, or 128 + signal.
int ExitCodeOfWaitStatus(int wait_status);

}  // namespace baton::cli
