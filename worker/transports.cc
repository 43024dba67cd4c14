#include "worker/transports.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status.h"
#include "kvtransfer/shm/shm_transport.h"
#include "kvtransfer/tcp/tcp_transport.h"
#include "worker/ucx_backend.h"

namespace baton::worker {

namespace {

constexpr std::string_view kMark = "kv1";

bool IsLoopback(const std::string& host) { return host.starts_with("127.") || host == "localhost"; }

}  // namespace

absl::StatusOr<std::vector<std::string>> TransportKinds(const WorkerConfig& config) {
  const std::vector<std::string> rdma = RdmaTransports();
  if (config.require_rdma) {
    if (!rdma.empty()) return std::vector<std::string>{"ucx-rdma"};
    const std::vector<std::string> found = UcxTransports();
    return absl::FailedPreconditionError(
        StrCat("--require-rdma: no RDMA device; UCX finds here: ",
               found.empty() ? "nothing (this build has no UCX)" : absl::StrJoin(found, ", ")));
  }
  std::vector<std::string> kinds;
  const std::string& flag = config.transport;
  if (!rdma.empty() && (flag == "auto" || flag == "ucx")) kinds.push_back("ucx-rdma");
  if (flag == "auto") kinds.push_back("shm");
  if (flag == "ucx") kinds.insert(kinds.end(), {"ucx-shm", "ucx-tcp"});
  if (flag != "auto" && flag != "ucx" && flag != "tcp") kinds.push_back(flag);
  kinds.push_back("tcp");
  return kinds;
}

absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(std::string_view kind, const std::string& host, uint16_t port,
                                                         const LandingShape& landing, TransportEvents& events) {
  TcpOptions options{.host = host == "localhost" ? "127.0.0.1" : host, .port = port, .landing = landing};
  if (kind == "tcp") return TcpTransport::Create(std::move(options), events);
  if (kind == "shm") return ShmTransport::Create(std::move(options), events);
  if (kind.starts_with("ucx-")) return MakeUcx(kind, IsLoopback(host), landing, events);
  return absl::InvalidArgumentError(StrCat("no transport '", kind, "': tcp, shm, ucx-tcp, ucx-shm or ucx-rdma"));
}

std::string KindOf(std::string_view address) { return std::string(address.substr(0, address.find(':'))); }

bool IsLocal(std::string_view kind) { return kind == "shm" || kind == "ucx-shm"; }

std::string LandingAddresses::Pack() const { return StrCat(kMark, "|", machine, "|", absl::StrJoin(addresses, "|")); }

absl::StatusOr<LandingAddresses> LandingAddresses::Parse(std::string_view text) {
  std::vector<std::string> parts = absl::StrSplit(AbslView(text), '|');
  if (parts.size() < 3 || parts[0] != kMark)
    return absl::InvalidArgumentError(StrCat("landing addresses of ", text.size(), " bytes that are none"));
  LandingAddresses out{parts[1], {}};
  out.addresses.assign(std::make_move_iterator(parts.begin() + 2), std::make_move_iterator(parts.end()));
  return out;
}

std::string ThisMachine() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat space{};
  const bool known = stat("/proc/self/ns/pid", &space) == 0;
  return StrCat(boot, "/", known ? space.st_ino : 0, "/", geteuid());
}

}  // namespace baton::worker
