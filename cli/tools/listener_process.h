// Which process of this host listens at an address.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace baton::cli {

/// `address`: host:port, as a worker is listed; a host that is not an address of this machine is another machine's.
/// FailedPrecondition: nobody listens there, or a process that this user may not look at.
absl::StatusOr<int> ListenerProcess(const std::string& address);

}  // namespace baton::cli
