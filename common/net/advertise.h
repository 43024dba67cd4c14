// What a server tells others of where it is.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace baton::net {

/// The host that peers are told: `advertised` where it is given; else `bound`, unless that is every address of the
/// machine (0.0.0.0, ::). Then it is the address from which packets leave by the default route, or the only address
/// that is neither loopback nor link-local. InvalidArgument: `advertised` is no host. FailedPrecondition: there is no
/// such address, or several; says which.
absl::StatusOr<std::string> AdvertisedHost(const std::string& bound, const std::string& advertised);

}  // namespace baton::net
