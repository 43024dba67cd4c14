// What `baton bench --kill` and `--at` do to a server while it is measured: workers of this host are killed, commands
// are run.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/http_client.h"
#include "load/bench_options.h"
#include "load/faults.h"

namespace baton::cli {

/// The commands of --at, apart from whatever else this process has started. One thread's.
class Commands {
 public:
  absl::Status Run(const std::string& command);
  /// Waits for none: takes the exit codes of those that have ended, and says which failed.
  void Reap();

 private:
  std::vector<pid_t> running_;
};

/// Looks up the processes now, so that nothing waits when the time has come; a worker that is not ready yet is waited
/// for, at most 30 s. InvalidArgument: a text is none; FailedPrecondition: no such worker, or it is not of this host;
/// Unavailable: the admin port does not answer. `server` is where requests go. `commands` outlives the faults.
absl::StatusOr<std::vector<load::Fault>> FindFaults(const load::BenchOptions& options, const HttpUrl& server,
                                                    Commands& commands);

}  // namespace baton::cli
