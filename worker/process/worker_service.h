// The gRPC face of a worker: translates and posts, decides nothing. Methods run on gRPC's threads.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "common/clock.h"
#include "common/prefix_hash.h"
#include "proto/worker.grpc.pb.h"
#include "worker/process/engine_shell.h"
#include "worker/process/met_routers.h"
#include "worker/process/router_sessions.h"
#include "worker/process/start_up.h"
#include "worker/relay/open_streams.h"
#include "worker/worker_config.h"

namespace baton::worker {

/// The service's knowledge of its worker. Thread-safe.
class WorkerState {
 public:
  WorkerState(const WorkerConfig& config, std::string version, std::string incarnation, std::optional<HashKey> key)
      : config_(config), version_(std::move(version)), incarnation_(std::move(incarnation)), key_(key) {}

  /// Sets the key of a worker that has none; the key in force.
  HashKey AdoptKey(const HashKey& offered);
  /// Waits until there is a key: true; or until `timeout`, or GiveUpOnKey.
  bool WaitForKey(Duration timeout);
  void GiveUpOnKey();
  std::optional<HashKey> key() const;
  void SetEngine(std::shared_ptr<EngineShell> engine);
  /// Another one's from now on.
  void SetIncarnation(std::string incarnation);
  std::string incarnation() const;
  std::shared_ptr<EngineShell> engine() const;
  void SetWorkerId(std::string id);
  v1::HandshakeReply Describe() const;
  /// To a router that speaks none of the versions that this worker does: which these are, and who says so.
  v1::HandshakeReply Introduce() const;
  StartUpProgress& progress() { return progress_; }
  const StartUpProgress& progress() const { return progress_; }

 private:
  const WorkerConfig& config_;
  const std::string version_;
  StartUpProgress progress_;
  mutable std::mutex mutex_;
  std::string worker_id_, incarnation_;
  std::optional<HashKey> key_;
  bool key_given_up_ = false;
  std::condition_variable key_changed_;
  std::shared_ptr<EngineShell> engine_;
};

/// What a change of the role took.
struct RoleChange {
  std::string incarnation;  ///< from now on
  Duration drained{}, changed{};
};
using RoleChanged = std::function<void(const absl::StatusOr<RoleChange>&)>;

class WorkerService final : public v1::Worker::CallbackService {
 public:
  /// All outlive it. `sessions`: who may call.
  WorkerService(WorkerState& state, RouterSessions& sessions, OpenStreams& streams)
      : state_(state), sessions_(sessions), streams_(streams) {}
  /// Who changes the worker's role (RoleChanger::Change). Before the first call; without it Flip is refused.
  void OnFlip(std::function<void(v1::WorkerRole, Duration, RoleChanged)> change_role) {
    change_role_ = std::move(change_role);
  }
  /// Who is told of the connection (grpc::ServerContext::peer) of each call that is allowed; `proven`: by the token of
  /// a session, and not because this worker has no cluster secret. Before the first call.
  void OnGreeted(std::function<void(std::string_view peer, bool proven)> greeted) { greeted_ = std::move(greeted); }

  grpc::ServerUnaryReactor* Handshake(grpc::CallbackServerContext* context, const v1::HandshakeRequest* request,
                                      v1::HandshakeReply* reply) override;
  grpc::ServerWriteReactor<v1::WorkerEvent>* Watch(grpc::CallbackServerContext* context,
                                                   const v1::WatchRequest* request) override;
  grpc::ServerBidiReactor<v1::RelayUp, v1::RelayDown>* Relay(grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Reserve(grpc::CallbackServerContext* context, const v1::ReserveRequest* request,
                                    v1::ReserveReply* reply) override;
  grpc::ServerWriteReactor<v1::PrefillReply>* Prefill(grpc::CallbackServerContext* context,
                                                      const v1::PrefillRequest* request) override;
  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context, const v1::CancelRequest* request,
                                   v1::CancelReply* reply) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                  v1::DrainReply* reply) override;
  grpc::ServerUnaryReactor* Flip(grpc::CallbackServerContext* context, const v1::FlipRequest* request,
                                 v1::FlipReply* reply) override;

 private:
  grpc::Status MayCall(const grpc::CallbackServerContext& context, std::string* router = nullptr);
  grpc::Status MayBegin(const grpc::CallbackServerContext& context, std::string& router);
  grpc::Status NoRole(bool loaded) const;
  WorkerState& state_;
  RouterSessions& sessions_;
  OpenStreams& streams_;
  std::function<void(v1::WorkerRole, Duration, RoleChanged)> change_role_;
  std::function<void(std::string_view peer, bool proven)> greeted_ = [](std::string_view, bool) {};
  const SteadyClock clock_;
  MetRouters met_{clock_};
};

}  // namespace baton::worker
