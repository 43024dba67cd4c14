// UCX where it is built in (with_ucx.cc); elsewhere a Status that says so (without_ucx.cc).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kvtransfer/transport.h"
#include "kvtransfer/ucx/ucx_transport.h"

namespace baton {

/// "ucx-rdma", "ucx-shm" or "ucx-tcp". `loopback`: TCP over the loopback device alone. Unavailable: not built in, or
/// UCX's own reason.
absl::StatusOr<std::unique_ptr<Transport>> MakeUcx(std::string_view kind, bool loopback, const LandingShape& landing,
                                                   TransportEvents& events);

/// The ways that UCX finds on this machine, "transport/device"; empty: UCX is not built in.
std::vector<std::string> UcxTransports();
/// Those of them that put into remote memory by hardware.
std::vector<std::string> RdmaTransports();
/// What became of a page with each of its devices that registers memory.
std::vector<UcxRegistration> UcxRegistrations();

}  // namespace baton
