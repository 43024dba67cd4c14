// Which transports a worker may use, by flags, by what the machine has and by a peer's addresses.
//
// A decode worker opens every kind it may use and gives out all addresses, best first; a prefill worker tries them in
// that order and keeps the first whose self-test passes (kvtransfer/self_test.h).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/net/address.h"
#include "common/trust/peer_trust.h"
#include "kvtransfer/transport.h"

namespace baton {

/// The words that --transport takes: "auto", "ucx" and each kind.
std::vector<std::string> TransportFlags();

/// The kinds that `flag` (--transport) allows, best first: of "ucx-rdma", "shm", "ucx-shm", "ucx-tcp", "tcp". The last
/// one is always tcp unless `require_rdma`. `encrypted` (--kv-tls): none whose bytes leave the machine in plain text.
/// FailedPrecondition under `require_rdma` without RDMA names what UCX found.
absl::StatusOr<std::vector<std::string>> TransportKinds(std::string_view flag, bool require_rdma, bool encrypted);

/// A transport of `kind` that listens on --host. `landing` without slots: one that only sends. `events` must outlive
/// it. `trust`: what peers by tcp and shm prove and how they speak; UCX has neither. InvalidArgument: no such kind.
/// Unavailable, ResourceExhausted, FailedPrecondition: as its Create.
absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(std::string_view kind, const std::string& host, uint16_t port,
                                                         const LandingShape& landing, TransportEvents& events,
                                                         trust::PeerTrust trust = {});

/// Another way to a transport, for tests.
using TransportMaker =
    std::function<absl::StatusOr<std::unique_ptr<Transport>>(const LandingShape& landing, TransportEvents& events)>;

/// "tcp" of "tcp:127.0.0.1:4000".
std::string KindOf(std::string_view address);
/// `address` with the host that others are told, where it has one that they dial: of tcp.
std::string ToldAs(const std::string& address, const std::string& host);
/// Where `address` is dialled, when its host is a name that must be resolved first.
std::optional<net::HostPort> NameToResolve(std::string_view address);
/// Whether a transport of this kind reaches processes of its own machine only.
bool IsLocal(std::string_view kind);

/// Every address of a decode worker, best first, and the machine it runs on.
struct LandingAddresses {
  std::string machine;
  std::vector<std::string> addresses;

  /// One line of text; never empty.
  std::string Pack() const;
  /// InvalidArgument when it is none.
  static absl::StatusOr<LandingAddresses> Parse(std::string_view text);
};

/// The same for two processes exactly when one may map the other's memory: this boot of this machine, this PID and
/// network namespace, this user.
std::string ThisMachine();

}  // namespace baton
