// Landing over UCX. Two verbs, because one is slow where the other is fast: puts on RDMA and shared memory, active
// messages on TCP (put over TCP collapses at large sizes). With messages the receiver writes, as on plain TCP; with
// puts the fence is the writer's exit (shared memory), or that his registration of the landing memory has ended and
// then the forced close of our endpoint with all its lanes (RDMA).
//
// Set for every context: MM_ERROR_HANDLING=y, without which shared memory is silently replaced by TCP when error
// handling is on; KEEPALIVE_INTERVAL=200ms, so that a dead peer is noticed. Active-message handlers are registered
// before the address is given out: UCX 1.13 dies on a message without one.
//
// By RDMA a GPU's memory is read by its peers (Lend, Read): what UCX has to be told of, and reports, of CUDA memory is
// looked at before (RdmaReachesCuda). With its older choice of protocols UCX would copy what is short by the host,
// which is why it is 1.16 at least.
//
// The address names the worker; landing memory and remote key come in the greeting. On RDMA each peer has a
// registration and a key of its own, which end with it; over shared memory, which UCX allocates, there is one key for
// all. Shared memory and networks are different transports (kinds): UCX takes the fence that a mix of them would need
// from nobody.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvtransfer/transport.h"

namespace baton {

struct UcxRegistration {
  std::string device;  ///< as UCX names its memory domain: "mlx5_0", "cma"
  absl::Status page;   ///< Unavailable: UCX's reason
};

enum class UcxVerb : uint8_t { kPut, kMessage };

/// The memory that Lend and TakeInto take.
enum class UcxLends : uint8_t {
  kNone,
  kCuda,
  kHost,  ///< of the host, as if it were a device's, for tests
};

struct UcxOptions {
  std::string name = "ucx";        ///< prefix of its addresses
  std::string transports = "tcp";  ///< as UCX_TLS: "tcp", "posix,cma", "rc" …
  std::string devices;             ///< as UCX_NET_DEVICES: "lo", "mlx5_0:1" …; empty: UCX chooses
  UcxVerb verb = UcxVerb::kMessage;
  FenceKind put_fence = FenceKind::kForcedClose;  ///< kPut: kPeerExit on shared memory
  LandingShape landing;
  size_t max_peers = 4096;  ///< that connected to us
  UcxLends lends = UcxLends::kNone;
  std::string lends_not = "";  ///< kNone: why; empty: nobody asked
};

/// Unavailable with UCX's reason. `events` must outlive the transport.
absl::StatusOr<std::unique_ptr<Transport>> MakeUcxTransport(UcxOptions options, TransportEvents& events);

/// "1.13.1", of the library that is loaded.
std::string UcxVersion();

/// The ways that UCX could use on this machine, as "transport/device": "rc_verbs/mlx5_0:1", "posix/memory", "tcp/eth0".
std::vector<std::string> UcxTransportsHere();
/// Devices with which memory is registered before it is read or written from elsewhere, and what became of a page
/// there.
std::vector<UcxRegistration> RegisterPages();
/// FailedPrecondition: why no RDMA here reads and writes a GPU's memory.
absl::Status RdmaReachesCuda();
/// Whether one of those ways puts into remote memory by hardware, over a connection of its own. dc has one target for
/// all peers: closing our endpoint would fence nobody.
bool IsRdma(std::string_view transport);

}  // namespace baton
