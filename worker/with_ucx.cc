#include "kvtransfer/ucx/ucx_transport.h"
#include "worker/ucx_backend.h"

namespace baton::worker {

absl::StatusOr<std::unique_ptr<Transport>> MakeUcx(bool loopback, const LandingShape& landing,
                                                   TransportEvents& events) {
  return MakeUcxTransport(
      {.transports = "tcp", .devices = loopback ? "lo" : "", .verb = UcxVerb::kMessage, .landing = landing}, events);
}

}  // namespace baton::worker
