// Who may reach a worker's port.
#pragma once

#include "absl/status/status.h"
#include "worker/worker_config.h"

namespace baton::worker {

/// Off loopback a worker serves its own cluster alone, unless the operator says otherwise, which is said at every
/// start. FailedPrecondition names the flags that it lacks. To be asked before any port is opened.
absl::Status CheckReach(const WorkerConfig& config);

}  // namespace baton::worker
