#include "worker/process/rpc_port.h"

#include <grpcpp/resource_quota.h>

#include <chrono>

#include "common/log.h"
#include "common/net/socket_address.h"
#include "common/open_files.h"
#include "common/str_cat.h"
#include "common/tls/grpc_credentials.h"

namespace baton::worker {
namespace {

// A router has one connection, or two while it dials again.
constexpr int32_t kConnections = 4096, kOfAnAddress = 512, kNewPerSecond = 100, kVainTries = 50;
/// Greetings and health checks are short.
constexpr uint64_t kStrangersBytes = 64 << 10;
constexpr int64_t kStrangersCalls = 64, kAllStrangersCalls = 4096;
/// What gRPC may hold for all: of messages that are not whole yet, for the most part.
constexpr size_t kMemory = size_t{1} << 30;
constexpr net::IdleTimes kIdle{std::chrono::seconds(10), std::chrono::seconds(120)};
constexpr uint64_t kOtherFiles = 4096 + 1024;  // of the landing port, and all that is no connection

int32_t ConnectionsThatFit() {
  const uint64_t files = AllowOpenFiles(kConnections + kOtherFiles);
  if (files >= kConnections + kOtherFiles) return kConnections;
  const auto fit = static_cast<int32_t>(files / 4);
  LogInfo(
      "worker: its port has {} connections at most, not {}: the limit of open files is {} (ulimit -n), and the rest "
      "is for KV, files and the landing port",
      fit, kConnections, files);
  return fit;
}

}  // namespace

absl::StatusOr<std::unique_ptr<net::GrpcAcceptor>> ListenForCalls(const RpcPort& port, grpc::ServerBuilder& builder) {
  const WorkerConfig& config = port.config;
  const auto where = net::AddressToBind(config.host, static_cast<uint16_t>(config.port));
  if (!where.ok()) return absl::FailedPreconditionError(StrCat("--host ", config.host, ": ", where.status().message()));
  net::BoundConnections(builder, kIdle);
  builder.SetResourceQuota(grpc::ResourceQuota("callers").Resize(kMemory));
  const int32_t most = ConnectionsThatFit();
  return net::GrpcAcceptor::Listen(
      {.where = *where,
       .port = "worker",
       .flags = "in use or not permitted; --host, --port",
       .limits = {.most = most, .per_address = std::min(kOfAnAddress, most / 2), .leaves_others = true},
       .new_per_second = kNewPerSecond,
       .vain_tries = kVainTries,
       .own_bytes = kStrangersBytes,
       .first_message_time = kIdle.begin,
       .stranger_calls = kStrangersCalls,
       .all_stranger_calls = kAllStrangersCalls,
       .first_bytes_time = kIdle.begin,
       .plain_text = !port.grpc_tls,
       .watches_calls = true,
       .greeted_stay = port.greeted_stay,
       .refused = port.refused},
      builder, port.grpc_tls ? port.grpc_tls->ForServer("worker", true) : grpc::InsecureServerCredentials());
}

}  // namespace baton::worker
