// Which transport a worker uses, by flag and by a peer's address.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvtransfer/transport.h"
#include "worker/worker_config.h"

namespace baton::worker {

/// "tcp", "shm" or "ucx": what --transport means on this host.
std::string TransportKind(const WorkerConfig& config);

/// A transport of `kind` that listens on --host. `landing` without slots: one that only sends. `events` must outlive
/// it. InvalidArgument: no such kind. Unavailable, ResourceExhausted: as its Create.
absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(std::string_view kind, const std::string& host, uint16_t port,
                                                         const LandingShape& landing, TransportEvents& events);

}  // namespace baton::worker
