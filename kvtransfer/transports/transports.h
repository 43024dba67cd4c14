// Which transports a worker may use, by flags, by what the machine has and by a peer's addresses.
//
// A decode worker opens every kind it may use and gives out all addresses, best first; a prefill worker tries them in
// that order and keeps the first whose self-test passes (kvtransfer/self_test.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/trust/peer_trust.h"
#include "kvtransfer/transport.h"
#include "kvtransfer/transports/landing_addresses.h"

namespace baton {

/// The words that --transport takes: "auto", "ucx" and each kind.
std::vector<std::string> TransportFlags();

/// The kinds that `flag` (--transport) allows, best first: of "ucx-rdma", "shm", "ucx-shm", "ucx-tcp", "tcp". The last
/// one is always tcp unless `require_rdma`. `by_ucx` false: none of UCX's, which neither ask who comes nor encrypt.
/// FailedPrecondition under `require_rdma` without RDMA names what UCX found.
absl::StatusOr<std::vector<std::string>> TransportKinds(std::string_view flag, bool require_rdma, bool by_ucx);

/// A transport of `kind` that listens on --host. `landing` without slots: one that only sends. `events` must outlive
/// it. `trust`: what peers by tcp and shm prove and how they speak; UCX has neither. InvalidArgument: no such kind.
/// Unavailable, ResourceExhausted, FailedPrecondition: as its Create.
absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(std::string_view kind, const std::string& host, uint16_t port,
                                                         const LandingShape& landing, TransportEvents& events,
                                                         trust::PeerTrust trust = {});

/// Another way to a transport, for tests.
using TransportMaker =
    std::function<absl::StatusOr<std::unique_ptr<Transport>>(const LandingShape& landing, TransportEvents& events)>;

/// Whether a transport of this kind reaches processes of its own machine only.
bool IsLocal(std::string_view kind);

/// The same for two processes exactly when one may map the other's memory: this boot of this machine, this PID and
/// network namespace, this user.
std::string ThisMachine();

}  // namespace baton
