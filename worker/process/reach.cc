#include "worker/process/reach.h"

#include "common/log.h"
#include "common/net/address.h"
#include "common/str_cat.h"

namespace baton::worker {
namespace {

/// Where others reach this worker: its own ports, or the one at which ranks of several machines meet; "" for nowhere.
std::string OpenPlace(const WorkerConfig& config) {
  if (!net::IsLoopback(config.host)) return StrCat("--host ", config.host);
  if (config.nnodes > 1 && !net::IsLoopback(config.master_addr)) return StrCat("--master-addr ", config.master_addr);
  return "";
}

}  // namespace

absl::Status CheckReach(const WorkerConfig& config) {
  const std::string place = OpenPlace(config);
  const bool encrypts = !config.tls_files.cert.empty(), greets = !config.cluster_secret_file.empty();
  if (place.empty() || (encrypts && greets)) return absl::OkStatus();
  if (!config.insecure) {
    const char* lacks = encrypts ? "--cluster-secret-file"
                        : greets ? "--tls-cert, --tls-key and --tls-ca"
                                 : "--tls-cert, --tls-key, --tls-ca and --cluster-secret-file";
    return absl::FailedPreconditionError(StrCat(place, " can be reached from other machines: that needs ", lacks,
                                                " (`baton certs` makes them for a trial), or --insecure on a trusted "
                                                "network"));
  }
  LogWarning("worker: --insecure at {}: {}", place.substr(place.find(' ') + 1),
             encrypts ? "whoever reaches its KV port is trusted"
             : greets ? "all is plain text"
                      : "whoever reaches it is trusted, and all is plain text");
  return absl::OkStatus();
}

}  // namespace baton::worker
