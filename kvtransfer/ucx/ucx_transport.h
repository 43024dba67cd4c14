// Landing over UCX. Two verbs, because one is slow where the other is fast: puts on RDMA and shared memory, active
// messages on TCP (put over TCP collapses at large sizes). With messages the receiver writes, as on plain TCP; with puts
// the fence is the forced close of our endpoint (RDMA) or the writer's exit (shared memory).
//
// Set for every context: MM_ERROR_HANDLING=y, without which shared memory is silently replaced by TCP when error handling
// is on; KEEPALIVE_INTERVAL=200ms, so that a dead peer is noticed. Active-message handlers are registered before the
// address is given out: UCX 1.13 dies on a message without one.
#pragma once

#include <memory>
#include <string>

#include "kvtransfer/transport.h"

namespace baton {

enum class UcxVerb : uint8_t { kPut, kMessage };

struct UcxOptions {
  std::string transports = "tcp";  ///< as UCX_TLS: "tcp", "posix", "rc" …
  std::string devices;             ///< as UCX_NET_DEVICES: "lo", "mlx5_0:1" …; empty: UCX chooses
  UcxVerb verb = UcxVerb::kMessage;
  FenceStyle put_fence = FenceStyle::kForcedClose;  ///< kPut: kPeerExit on shared memory
  LandingShape landing;
};

/// Unavailable with UCX's reason. `events` must outlive the transport. wait_fd() is -1: call Progress periodically.
absl::StatusOr<std::unique_ptr<Transport>> MakeUcxTransport(UcxOptions options, TransportEvents& events);

/// "1.13.1", of the library that is loaded.
std::string UcxVersion();

}  // namespace baton
