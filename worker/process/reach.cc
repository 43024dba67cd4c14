#include "worker/process/reach.h"

#include "common/log.h"
#include "common/net/address.h"
#include "common/str_cat.h"
#include "kvtransfer/transports/ucx_backend.h"

namespace baton::worker {
namespace {

/// Where others reach this worker: its own ports, or the one at which ranks of several machines meet; "" for nowhere.
std::string OpenPlace(const WorkerConfig& config) {
  if (!net::IsLoopback(config.host)) return StrCat("--host ", config.host);
  if (config.nnodes > 1 && !net::IsLoopback(config.master_addr)) return StrCat("--master-addr ", config.master_addr);
  return "";
}

/// What was asked for by name whose own ports ask nobody who he is; "" for nothing.
std::string UngreetedPort(const WorkerConfig& config) {
  const bool ranks_meet = config.nnodes > 1 && !net::IsLoopback(config.master_addr);
  if (ranks_meet && config.device.starts_with("cuda")) return StrCat("--nnodes ", config.nnodes, " of GPUs: NCCL");
  if (net::IsLoopback(config.host) || config.role == "both") return "";
  if (config.require_rdma) return "--require-rdma: UCX";
  return config.transport.starts_with("ucx") ? StrCat("--transport ", config.transport, ": UCX") : "";
}

absl::Status CheckNetwork(const WorkerConfig& config) {
  if (config.kv_trusted_network || config.insecure) return absl::OkStatus();
  if (const std::string port = UngreetedPort(config); !port.empty()) {
    return absl::FailedPreconditionError(StrCat(port,
                                                " has ports of its own, which neither ask for the cluster secret "
                                                "nor encrypt: --kv-trusted-network where workers alone reach them"));
  }
  if (config.transport == "auto" && config.role != "both" && !config.kv_by_ucx() && !config.kv_tls &&
      !RdmaTransports().empty()) {
    LogWarning("worker: there is RDMA here, but KV goes without it: --kv-trusted-network where workers alone reach it");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckReach(const WorkerConfig& config) {
  const std::string place = OpenPlace(config);
  const bool encrypts = !config.tls_files.cert.empty(), greets = !config.cluster_secret_file.empty();
  if (place.empty()) return absl::OkStatus();
  if (encrypts && greets) return CheckNetwork(config);
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
