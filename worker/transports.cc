#include "worker/transports.h"

#include "common/status.h"
#include "kvtransfer/shm/shm_transport.h"
#include "kvtransfer/tcp/tcp_transport.h"

namespace baton::worker {

std::string TransportKind(const WorkerConfig& config) {
  if (config.transport != "auto") return config.transport;
  return config.host.starts_with("127.") || config.host == "localhost" ? "shm" : "tcp";
}

absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(std::string_view kind, const std::string& host, uint16_t port,
                                                         const LandingShape& landing, TransportEvents& events) {
  TcpOptions options{.host = host == "localhost" ? "127.0.0.1" : host, .port = port, .landing = landing};
  if (kind == "tcp") return TcpTransport::Create(std::move(options), events);
  if (kind == "shm") return ShmTransport::Create(std::move(options), events);
  return absl::InvalidArgumentError(StrCat("no transport '", kind, "' in this build: tcp, shm"));
}

}  // namespace baton::worker
