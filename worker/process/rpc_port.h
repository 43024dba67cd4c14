// A worker's gRPC port, which routers call and strangers may reach: how many connections it has of whom, and how long
// they may do nothing.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/grpc/acceptor.h"
#include "worker/worker_config.h"

namespace baton::tls {
class GrpcTls;
}

namespace baton::worker {

struct RpcPort {
  const WorkerConfig& config;
  tls::GrpcTls* grpc_tls = nullptr;  ///< null: plain text
  bool greeted_stay = false;         ///< strangers lose their places to others, who has greeted does not
  std::function<void(const char* why)> refused = [](const char*) {};  ///< on any thread
};

/// Listens at --host and --port for the server that is built of `builder`; its Start is to be called once that stands.
/// FailedPrecondition: --host cannot be used. AlreadyExists, PermissionDenied: the address cannot be bound.
absl::StatusOr<std::unique_ptr<net::GrpcAcceptor>> ListenForCalls(const RpcPort& port, grpc::ServerBuilder& builder);

}  // namespace baton::worker
