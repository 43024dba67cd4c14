#include "worker/process/reach.h"

#include "common/log.h"
#include "common/net/address.h"
#include "common/str_cat.h"

namespace baton::worker {

absl::Status CheckReach(const WorkerConfig& config) {
  if (!net::IsLoopback(config.host) && config.cluster_secret_file.empty()) {
    LogWarning("worker: --host {} without --cluster-secret-file: whoever reaches the landing port may send KV",
               config.host);
  }
  if (net::IsLoopback(config.host) || !config.tls_files.cert.empty()) return absl::OkStatus();
  if (!config.insecure) {
    return absl::FailedPreconditionError(
        StrCat("--host ", config.host,
               " can be reached from other machines: that needs --tls-cert, --tls-key and "
               "--tls-ca (`baton certs` makes them for a trial), or --insecure on a trusted network"));
  }
  LogWarning("worker: --insecure: whoever reaches {} is trusted and reads everything in plain text", config.host);
  return absl::OkStatus();
}

}  // namespace baton::worker
