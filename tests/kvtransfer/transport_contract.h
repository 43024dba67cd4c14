// The backends that the contract test runs over.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvtransfer/transport.h"

namespace baton {

struct Backend {
  std::string name;
  /// A transport with this landing memory; a Status that says why not.
  std::function<absl::StatusOr<std::unique_ptr<Transport>>(LandingShape, TransportEvents&)> make;
  // What it is, so that a test of something that it has not is not there at all: a skipped one would look the same.
  FenceKind fence;
  bool maps_slots = false;   ///< Transport::slot_of
  bool one_process = false;  ///< no other process can connect, and there is nothing to wait on: it is turned by hand
};

/// UCX in its variants, or none when it is not built in.
std::vector<Backend> UcxBackends();

}  // namespace baton
