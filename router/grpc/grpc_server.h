// GrpcServer: the TokenizedRequest service with health and reflection on a port of its own. Requests run on the loops
// of a pool, as those of HTTP do. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/net/connection_shares.h"
#include "common/net/idle_times.h"
#include "router/admission/api_keys.h"
#include "router/admission/request_ids.h"
#include "router/request/request_service.h"

namespace baton::tls {
class GrpcTls;
}

namespace baton::router {

class GrpcServer {
 public:
  struct Options {
    std::string host, version;
    uint16_t port = 0;  ///< 0 = any free one
    size_t max_message_bytes = 8 << 20;
    tls::GrpcTls* grpc_tls = nullptr;  ///< null: plain text. Outlives the server.
    bool ask_client = false;           ///< with TLS: clients must show a certificate
    int32_t max_streams = 1024;        ///< calls under way on one connection; more wait in the client
    net::ConnectionLimits limits;
    int32_t new_per_second = 0;  ///< connections of one address, half of it at once in vain; 0: no limit
    net::IdleTimes idle{std::chrono::seconds(30), std::chrono::seconds(120)};
    /// A connection that found no place, and why ("max-connections", …). On any thread.
    std::function<void(const char* why)> connection_refused = [](const char*) {};
    /// A call that was ended because its client took nothing of its answer; its address without port. On any thread.
    std::function<void(const std::string& address)> slow_reader = [](const std::string&) {};
  };
  /// Everything given outlives the server. AlreadyExists, PermissionDenied: the address, with host, port and flag.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(Options options, EventLoopPool& pool,
                                                           RequestService& service, const ApiKeys& keys,
                                                           RequestIds& ids);
  ~GrpcServer();

  uint16_t port() const;
  /// What the health service answers, for "" and for the TokenizedRequest service.
  void SetServing(bool serving);
  /// Clients are to go elsewhere with their next calls: they are told, once a second those that have come since, too.
  /// The health service says that it serves nobody. Idempotent.
  void Drain();
  /// Waits until those who were told, on connections of before, have gone, or had Admission::kOnItsWay to. False after
  /// `timeout`.
  bool WaitGone(Duration timeout) const;
  /// Takes no new calls, cancels those that still run after `grace`, and returns when gRPC is done with all.
  /// Idempotent.
  void Stop(Duration grace);

 private:
  struct Inner;
  explicit GrpcServer(std::unique_ptr<Inner> inner);
  std::unique_ptr<Inner> inner_;
};

}  // namespace baton::router
