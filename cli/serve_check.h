// What would stop a router or a worker of `baton serve`, found before any of them is started.
#pragma once

#include "absl/status/status.h"
#include "router/router_config.h"
#include "worker/worker_config.h"

namespace baton::cli {

/// FailedPrecondition for flags that no worker takes; else as engine::InspectModel: the model is opened and checked
/// with this worker's flags, and nothing of it is loaded.
absl::Status CheckWorkerStart(const worker::WorkerConfig& config);

/// FailedPrecondition for flags that no router takes.
absl::Status CheckRouterStart(const router::RouterConfig& config);

/// FailedPrecondition where the router lets through what the worker cannot do.
absl::Status CheckTogether(const router::RouterConfig& router, const worker::WorkerConfig& worker);

}  // namespace baton::cli
