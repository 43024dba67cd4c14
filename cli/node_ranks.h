// `baton worker --node-rank N` with N above 0: the ranks of a worker on this machine, where rank 0, and with it the
// engine and the requests, are on another.
#pragma once

#include <string>
#include <vector>

#include "cli/ready_file.h"
#include "worker/worker_config.h"

namespace baton::cli {

/// Joins, computes and ends with the group. SIGTERM waits for rank 0 to end, which drains, at most
/// --shutdown-timeout-ms; a second one ends at once. The exit code. `arguments`: this worker's flags.
int RunNodeRanks(const worker::WorkerConfig& config, const std::vector<std::string>& arguments,
                 const std::string& ready_file);

}  // namespace baton::cli
