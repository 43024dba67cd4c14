#include "worker/transports.h"

#include "common/status.h"
#include "kvtransfer/shm/shm_transport.h"
#include "kvtransfer/tcp/tcp_transport.h"
#include "worker/ucx_backend.h"

namespace baton::worker {

namespace {

bool IsLoopback(const std::string& host) { return host.starts_with("127.") || host == "localhost"; }

}  // namespace

std::string TransportKind(const WorkerConfig& config) {
  if (config.transport != "auto") return config.transport;
  return IsLoopback(config.host) ? "shm" : "tcp";
}

absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(std::string_view kind, const std::string& host, uint16_t port,
                                                         const LandingShape& landing, TransportEvents& events) {
  TcpOptions options{.host = host == "localhost" ? "127.0.0.1" : host, .port = port, .landing = landing};
  if (kind == "tcp") return TcpTransport::Create(std::move(options), events);
  if (kind == "shm") return ShmTransport::Create(std::move(options), events);
  if (kind == "ucx") return MakeUcx(IsLoopback(host), landing, events);
  return absl::InvalidArgumentError(StrCat("no transport '", kind, "': tcp, shm or ucx"));
}

}  // namespace baton::worker
