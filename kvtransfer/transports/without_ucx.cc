#include "kvtransfer/transports/ucx_backend.h"

namespace baton {

absl::StatusOr<std::unique_ptr<Transport>> MakeUcx(std::string_view, bool, const LandingShape&, TransportEvents&) {
  return absl::UnavailableError("this build has no UCX: install libucx-dev and build again, or use --transport tcp");
}

std::vector<std::string> UcxTransports() { return {}; }
std::vector<std::string> RdmaTransports() { return {}; }
std::vector<UcxRegistration> UcxRegistrations() { return {}; }

}  // namespace baton
