// Endpoint: where a worker can be reached, as discovery tells the fleet. Its role comes from the handshake.
#pragma once

#include <string>

namespace baton::router {

struct Endpoint {
  std::string address;       ///< HOST:PORT of its gRPC
  bool serving = true;       ///< false: not dialled, and no new requests
  bool terminating = false;  ///< it ends: no new requests, its streams end

  bool takes_requests() const { return serving && !terminating; }
  bool operator==(const Endpoint&) const = default;
};

}  // namespace baton::router
