#include "kvtransfer/transports/ucx_backend.h"

namespace baton {

absl::StatusOr<std::unique_ptr<Transport>> MakeUcx(std::string_view kind, bool loopback, const LandingShape& landing,
                                                   TransportEvents& events) {
  UcxOptions options{.name = std::string(kind), .landing = landing};
  if (kind == "ucx-tcp") {
    options.devices = loopback ? "lo" : "";
  } else if (kind == "ucx-shm") {
    options.transports = "posix,cma,self";
    options.verb = UcxVerb::kPut;
    options.put_fence = FenceKind::kPeerExit;
  } else {
    options.transports = "rc";  // with UCX's own helper for connecting; not dc (IsRdma)
    options.verb = UcxVerb::kPut;
    const absl::Status cuda = RdmaReachesCuda();
    options.lends = cuda.ok() ? UcxLends::kCuda : UcxLends::kNone;
    options.lends_not = std::string(cuda.message());
  }
  return MakeUcxTransport(std::move(options), events);
}

std::vector<std::string> UcxTransports() { return UcxTransportsHere(); }
std::vector<UcxRegistration> UcxRegistrations() { return RegisterPages(); }

std::vector<std::string> RdmaTransports() {
  std::vector<std::string> out;
  for (std::string& transport : UcxTransportsHere()) {
    if (IsRdma(transport)) out.push_back(std::move(transport));
  }
  return out;
}

}  // namespace baton
