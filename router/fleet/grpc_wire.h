// GrpcWire: a WorkerWire over gRPC. The Relay stream, which has the traffic, runs on an event loop of the router over a
// connection of its own; everything else runs over a channel of the gRPC library. Hides gRPC and protobuf from its
// users.
#pragma once

#include <memory>
#include <string>

#include "common/trust/cluster_secret.h"
#include "router/event_loop.h"
#include "router/fleet/report_terms.h"
#include "router/fleet/worker_wire.h"

namespace baton::tls {
class GrpcTls;
class LiveIdentity;
}  // namespace baton::tls

namespace baton::router {

class GrpcWire final : public WorkerWire {
 public:
  struct Options {
    std::string address, router_id, router_version;
    int32_t backoff_max_ms = 2000;
    ReportTerms reports;
    EventLoop* relay_loop = nullptr;                     ///< of an EventLoopPool; runs until Shutdown has returned
    tls::GrpcTls* grpc_tls = nullptr;                    ///< null: plain text. Outlives the wire.
    const tls::LiveIdentity* identity = nullptr;         ///< of grpc_tls
    std::string tls_server_name;                         ///< what a worker at an IP address proves
    std::shared_ptr<const trust::ClusterSecret> secret;  ///< what a worker proves to know; null: nothing
    size_t max_pending_attaches = 1024;  ///< relay orders waiting to be written; more is ResourceExhausted
  };
  explicit GrpcWire(Options options);
  ~GrpcWire() override;

  void Handshake(const std::string& hash_key, Duration timeout, std::function<void(HandshakeAnswer)> done) override;
  void OpenRelay(uint64_t session, RelayHandlers handlers) override;
  void OpenWatch(WatchHandlers handlers) override;
  void CloseSession() override;
  absl::Status Send(uint64_t session, const TokenizedRequest& generation, const LegOrder& order,
                    std::function<void(LegAnswer)> on_answer) override;
  void Renew(uint64_t session, const std::vector<LegRenewal>& legs) override;
  void Meet(uint64_t session, const std::string& landing_address) override;
  void Flip(WorkerRole to, Duration patience, std::function<void(FlipAnswer)> done) override;
  bool HasUnread() const override;
  void Shutdown() override;

 private:
  struct Inner;
  std::shared_ptr<Inner> inner_;
};

}  // namespace baton::router
