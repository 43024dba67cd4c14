// A cluster's ports from one flag, so that a second cluster on one machine needs no more than --port.
#pragma once

#include "cli/flag_set.h"

namespace baton::cli {

/// The gRPC and admin ports that nobody named: the two behind --port, or any free ones where --port asks for any.
template <class Config>
void FollowPort(const FlagSet& set, Config& config) {
  if (!set.given().contains("port")) return;
  const auto behind = [&config](int distance) { return config.port == 0 ? 0 : config.port + distance; };
  if (!set.given().contains("grpc-port")) config.grpc_port = behind(1);
  if (!set.given().contains("admin-port")) config.admin_port = behind(2);
}

}  // namespace baton::cli
