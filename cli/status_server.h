// The HTTP port of a worker's machine for probes and scrapes (--status-port; status_page.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cli/status_page.h"
#include "worker/worker_config.h"

namespace baton::cli {

/// MachineStatus of `config`, but for what changes.
MachineStatus MachineOf(const worker::WorkerConfig& config, const std::string& name);

/// Serves at --host, in TLS with the certificate of --tls-cert where that is given; it asks for no certificate, as
/// probes have none. Thread-safe.
class StatusServer {
 public:
  /// `status`: asked on a thread of its own for each request; outlives this. Null where --status-port is -1. Fails as
  /// router::HttpServer does.
  static absl::StatusOr<std::unique_ptr<StatusServer>> Start(const worker::WorkerConfig& config,
                                                             std::function<MachineStatus()> status);
  ~StatusServer();
  /// Where it serves, at `host`.
  std::string UrlAt(const std::string& host) const;

 private:
  class Parts;
  explicit StatusServer(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace baton::cli
