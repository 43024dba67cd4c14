#include "worker/ucx_backend.h"

namespace baton::worker {

absl::StatusOr<std::unique_ptr<Transport>> MakeUcx(bool, const LandingShape&, TransportEvents&) {
  return absl::UnavailableError("this build has no UCX: install libucx-dev and build again, or use --transport tcp");
}

}  // namespace baton::worker
