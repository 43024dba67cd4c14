// UCX for the workers, where it is built in (with_ucx.cc); elsewhere a Status that says so (without_ucx.cc).
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kvtransfer/transport.h"

namespace baton::worker {

/// UCX over TCP; `loopback`: over the loopback device alone. Unavailable: not built in, or UCX's own reason.
absl::StatusOr<std::unique_ptr<Transport>> MakeUcx(bool loopback, const LandingShape& landing, TransportEvents& events);

}  // namespace baton::worker
