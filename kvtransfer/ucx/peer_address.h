// The address of a peer over UCX, in bytes: UCX's own, and what we say beside it. Knows nothing of UCX; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvtransfer/transport.h"

namespace baton::ucx {

/// The contents of an address, and, in a greeting, the memory that the peer may write.
struct PeerAddress {
  uint64_t incarnation = 0;
  int64_t pid = 0;
  std::string worker;
  uint64_t memory = 0;  ///< of the landing slots, in the peer's address space; the rest of it only in greetings
  LandingShape landing;
  std::string remote_key;

  PeerAddress WithoutLanding() const { return {incarnation, pid, worker, 0, {}, ""}; }

  std::string Pack() const;
  /// InvalidArgument when it is none.
  static absl::StatusOr<PeerAddress> Parse(std::string_view bytes);
};

}  // namespace baton::ucx
