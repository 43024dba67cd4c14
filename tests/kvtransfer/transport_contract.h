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
};

/// UCX in its variants, or none when it is not built in.
std::vector<Backend> UcxBackends();

}  // namespace baton
