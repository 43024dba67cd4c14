#include "worker/process/health_server.h"

#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <utility>

#include "common/clock.h"
#include "common/status.h"
#include "common/tls/grpc_credentials.h"
#include "common/tls/live_identity.h"
#include "common/tls/refusals.h"
#include "worker/process/rpc_port.h"

namespace baton::worker {

class HealthServer::Parts {
 public:
  absl::Status Listen(const WorkerConfig& config) {
    if (config.tls_files.given()) {
      BATON_ASSIGN_OR_RETURN(identity_, tls::LiveIdentity::Open(config.tls_files));
      BATON_ASSIGN_OR_RETURN(tls_, tls::GrpcTls::Make(*identity_, refusals_));
      identity_->Watch();
    }
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    BATON_ASSIGN_OR_RETURN(acceptor_, ListenForCalls({config, tls_.get()}, builder));
    builder.SetMaxReceiveMessageSize(4096);
    server_ = builder.BuildAndStart();
    if (!server_) return absl::InternalError("gRPC does not start");
    acceptor_->Start();
    SetReady(false);
    return absl::OkStatus();
  }
  ~Parts() {
    if (acceptor_) acceptor_->Stop();
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
  }

  void SetReady(bool ready) {
    server_->GetHealthCheckService()->SetServingStatus(ready);
    server_->GetHealthCheckService()->SetServingStatus("baton.v1.Worker", ready);
    server_->GetHealthCheckService()->SetServingStatus("", true);
  }
  uint16_t port() const { return acceptor_->port(); }

 private:
  const SteadyClock clock_;
  tls::Refusals refusals_{clock_};
  std::unique_ptr<tls::LiveIdentity> identity_;  ///< null: no TLS
  std::unique_ptr<tls::GrpcTls> tls_;            ///< of identity_
  std::unique_ptr<net::GrpcAcceptor> acceptor_;  ///< outlives the server
  std::unique_ptr<grpc::Server> server_;
};

absl::StatusOr<std::unique_ptr<HealthServer>> HealthServer::Listen(const WorkerConfig& config) {
  auto parts = std::make_unique<Parts>();
  BATON_RETURN_IF_ERROR(parts->Listen(config));
  return std::unique_ptr<HealthServer>(new HealthServer(std::move(parts)));
}

HealthServer::HealthServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
HealthServer::~HealthServer() = default;
uint16_t HealthServer::port() const { return parts_->port(); }
void HealthServer::SetReady(bool ready) { parts_->SetReady(ready); }

}  // namespace baton::worker
