#include "kvtransfer/transports/transports.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/str_join.h"
#include "common/net/address.h"
#include "common/status.h"
#include "kvtransfer/shm/shm_transport.h"
#include "kvtransfer/tcp/tcp_transport.h"
#include "kvtransfer/transports/ucx_backend.h"

namespace baton {

namespace {

bool AlwaysHere() { return true; }
bool RdmaHere() { return !RdmaTransports().empty(); }

/// The address that a transport listens at, and the memory that it has to land in.
struct Place {
  std::string kind, host;
  uint16_t port = 0;
  LandingShape landing;
  trust::PeerTrust trust;
};
using Made = absl::StatusOr<std::unique_ptr<Transport>>;

TcpOptions TcpOf(const Place& place) {
  return {.host = place.host, .port = place.port, .landing = place.landing, .trust = place.trust};
}
Made Tcp(const Place& place, TransportEvents& events) { return TcpTransport::Create(TcpOf(place), events); }
Made Shm(const Place& place, TransportEvents& events) { return ShmTransport::Create(TcpOf(place), events); }
Made Ucx(const Place& place, TransportEvents& events) {
  return MakeUcx(place.kind, net::IsLoopback(place.host), place.landing, events);
}

/// Every transport there is, best first. A new one is a row here.
struct Kind {
  std::string_view name;
  bool local;  ///< it reaches processes of its own machine only
  bool ucx;
  bool by_auto, by_ucx;  ///< whether --transport auto and ucx mean it too, where it `is_here`
  bool (*is_here)();
  Made (*make)(const Place& place, TransportEvents& events);
};
constexpr Kind kKinds[] = {
    {"ucx-rdma", false, true, true, true, RdmaHere, Ucx},  {"shm", true, false, true, false, AlwaysHere, Shm},
    {"ucx-shm", true, true, false, true, AlwaysHere, Ucx}, {"ucx-tcp", false, true, false, true, AlwaysHere, Ucx},
    {"tcp", false, false, true, true, AlwaysHere, Tcp},
};

const Kind* Find(std::string_view name) {
  const Kind* const found = std::ranges::find(kKinds, name, &Kind::name);
  return found == std::end(kKinds) ? nullptr : found;
}

}  // namespace

std::vector<std::string> TransportFlags() {
  std::vector<std::string> out = {"auto", "ucx"};
  for (const Kind& kind : kKinds) out.emplace_back(kind.name);
  return out;
}

absl::StatusOr<std::vector<std::string>> TransportKinds(std::string_view flag, bool require_rdma, bool by_ucx) {
  if (require_rdma) {
    if (RdmaHere()) return std::vector<std::string>{"ucx-rdma"};
    const std::vector<std::string> found = UcxTransports();
    return absl::FailedPreconditionError(
        StrCat("--require-rdma: no RDMA device; UCX finds here: ",
               found.empty() ? "nothing (this build has no UCX)" : absl::StrJoin(found, ", ")));
  }
  std::vector<std::string> kinds;
  for (const Kind& kind : kKinds) {
    if (kind.ucx && !by_ucx) continue;
    const bool meant = (flag == "auto" && kind.by_auto) || (flag == "ucx" && kind.by_ucx);
    if (flag == kind.name || kind.name == "tcp" || (meant && kind.is_here())) kinds.emplace_back(kind.name);
  }
  return kinds;
}

absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(std::string_view kind, const std::string& host, uint16_t port,
                                                         const LandingShape& landing, TransportEvents& events,
                                                         trust::PeerTrust trust) {
  if (const Kind* found = Find(kind))
    return found->make({std::string(kind), host, port, landing, std::move(trust)}, events);
  return absl::InvalidArgumentError(StrCat("no transport '", kind, "': ", absl::StrJoin(TransportFlags(), ", ")));
}

bool IsLocal(std::string_view kind) {
  const Kind* const found = Find(kind);
  return found != nullptr && found->local;
}

std::string ThisMachine() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  const auto space = [](const char* of) {
    struct stat found{};
    return stat(of, &found) == 0 ? found.st_ino : 0;
  };
  return StrCat(boot, "/", space("/proc/self/ns/pid"), "/", space("/proc/self/ns/net"), "/", geteuid());
}

}  // namespace baton
