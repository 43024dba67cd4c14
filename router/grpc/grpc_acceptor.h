// GrpcAcceptor: takes the connections of the gRPC port in gRPC's place, so that one address leaves some to others, and
// hands them to gRPC. gRPC tells nobody when a connection ends; its socket does: a descriptor that is closed, or
// another socket's by now, is a connection that has ended. Thread-safe; a thread of its own.
#pragma once

#include <grpcpp/server_builder.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/net/socket_address.h"
#include "router/connection_shares.h"

namespace baton::router {

class GrpcAcceptor {
 public:
  struct Options {
    net::SocketAddress where;
    ConnectionLimits limits;
    std::function<void(const char* why)> refused;  ///< on the thread; as ConnectionShares::Enter
  };
  /// Listens. `to`: of the server, which may start later. AlreadyExists, PermissionDenied: with host and flag.
  static absl::StatusOr<std::unique_ptr<GrpcAcceptor>> Listen(
      Options options, std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> to);
  ~GrpcAcceptor();

  uint16_t port() const { return port_; }
  /// Takes connections from now on.
  void Start();
  /// Takes none any more: who dials is refused. Idempotent; before the server is shut down.
  void Stop();

 private:
  struct Taken {
    int fd = -1;
    uint64_t inode = 0;  ///< of the socket
    boost::asio::ip::address from;
  };
  GrpcAcceptor(Options options, std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> to, int listener);
  void Run();
  void Take(int fd, const boost::asio::ip::address& from);
  /// Gives back the places of connections that have ended.
  void Sweep();

  const Options options_;
  const std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> to_;
  int listener_;    ///< -1: closed
  const int stop_;  ///< can be read once Stop was called
  uint16_t port_ = 0;
  std::thread thread_;
  // The thread's:
  ConnectionShares shares_;
  std::vector<Taken> taken_;
  TimePoint swept_{};
};

}  // namespace baton::router
