#include "worker/process/worker_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "absl/strings/str_format.h"
#include "common/log.h"
#include "common/net/advertise.h"
#include "common/status.h"
#include "common/tls/grpc_credentials.h"
#include "common/tls/kernel_tls.h"
#include "common/tls/peer_tls.h"
#include "common/trust/hash_key.h"
#include "proto/order_limits.h"
#include "worker/process/role_changer.h"
#include "worker/process/rpc_port.h"
#include "worker/process/worker_service.h"

namespace baton::worker {
namespace {

constexpr auto kTick = std::chrono::milliseconds(10);
constexpr auto kKeyWait = std::chrono::seconds(5);

absl::StatusOr<std::optional<HashKey>> KeyOf(const WorkerConfig& config) {
  if (config.hash_key_file.empty()) return std::optional<HashKey>();
  BATON_ASSIGN_OR_RETURN(HashKey key, HashKey::FromFile(config.hash_key_file));
  return std::optional<HashKey>(key);
}

}  // namespace

class WorkerServer::Parts {
 public:
  Parts(const WorkerConfig& config, std::string version, std::string incarnation, std::optional<HashKey> key,
        std::shared_ptr<const trust::ClusterSecret> secret, RoleFactory make_role, std::unique_ptr<RankHost> ranks)
      : config_(config),
        ranks_(std::move(ranks)),
        has_role_(make_role != nullptr),
        incarnation_(incarnation),
        secret_(std::move(secret)),
        state_(config_, std::move(version), std::move(incarnation), key),
        service_(state_, sessions_, streams_),
        roles_({config_, state_, clock_, std::move(make_role), [this] { return KvTrust(); },
                [this](bool serves) { SetServing(serves); }}) {
    if (!has_role_) return;
    service_.OnFlip([this](v1::WorkerRole to, Duration patience, RoleChanged done) {
      roles_.Change(to, patience, std::move(done));
    });
  }
  ~Parts() { Stop(); }

  absl::Status Listen() {
    BATON_RETURN_IF_ERROR(ReadTlsFiles());
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    BATON_ASSIGN_OR_RETURN(acceptor_, ListenForCalls({config_, tls_.get(), /*greeted_stay=*/secret_ != nullptr,
                                                      [this](const char*) { ++connections_refused_; }},
                                                     builder));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, config_.router_timeout_ms / 2);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, config_.router_timeout_ms / 2);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
    builder.SetMaxReceiveMessageSize(kMostMessageBytes);
    builder.SetMaxSendMessageSize(kMostMessageBytes);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (!server_) return absl::InternalError("gRPC does not start");
    service_.OnGreeted([this](std::string_view peer, bool proven) {
      if (proven) {
        acceptor_->Greeted(peer);
      } else {
        acceptor_->Useful(peer);
      }
    });
    state_.SetWorkerId(config_.Name(port()));
    SetServing(false);
    acceptor_->Start();
    loader_ = std::thread([this] { Load(); });
    io_ = std::thread([this] { RunTimers(); });
    return absl::OkStatus();
  }

  uint16_t port() const { return acceptor_->port(); }

  bool WaitReady(Duration timeout) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] { return load_ended_; });
  }
  absl::Status LoadStatus() const {
    std::lock_guard lock(mutex_);
    return load_status_;
  }

  bool Serving() const { return serving_; }
  StartUpProgress::View Progress() const { return state_.progress().Get(); }

  absl::Status Health() const {
    if (absl::Status ranks = ranks_ ? ranks_->Health() : absl::OkStatus(); !ranks.ok()) return ranks;
    return roles_.Health();
  }

  void Drain() {
    roles_.GiveUp();
    SetServing(false);
    std::shared_ptr<EngineShell> engine = state_.engine();
    if (!engine) return SetDrained();
    engine->Drain([this] { SetDrained(); });
  }
  bool WaitDrained(Duration timeout) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] { return drained_; });
  }

  void Stop() {
    {
      std::lock_guard lock(mutex_);
      if (std::exchange(stopping_, true)) return;
    }
    changed_.notify_all();
    state_.GiveUpOnKey();
    state_.progress().GiveUp();
    if (ranks_ && !WaitDrained(Duration::zero())) {  // a step may wait for a rank that does not answer
      for (engine::Communicator* link : {ranks_->links().world, ranks_->links().tensor}) {
        if (link != nullptr) link->Abort(absl::UnavailableError("the worker stops"));
      }
    }
    if (loader_.joinable()) loader_.join();
    if (io_.joinable()) io_.join();
    roles_.Stop();
    if (acceptor_) acceptor_->Stop();
    if (server_) {
      server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
      server_->Wait();
    }
    if (std::shared_ptr<EngineShell> engine = state_.engine()) engine->Shutdown();
    state_.SetEngine(nullptr);
  }

 private:
  absl::Status ReadTlsFiles() {
    if (!config_.tls_files.given()) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(identity_, tls::LiveIdentity::Open(config_.tls_files));
    BATON_ASSIGN_OR_RETURN(tls_, tls::GrpcTls::Make(*identity_, refusals_));
    identity_->Watch();
    LogInfo("worker: TLS with the certificate of {}", identity_->now()->text());
    if (!config_.kv_tls) return absl::OkStatus();
    kernel_tls_ = tls::ChooseKernelTls(config_.kv_kernel_tls);
    LogInfo("worker: KV in TLS: {}", kernel_tls_.text);
    return absl::OkStatus();
  }

  trust::PeerTrust KvTrust() const {
    if (!config_.kv_tls) return {.secret = secret_};
    return {.secret = secret_,
            .tls = std::make_shared<tls::PeerTls>(identity_, config_.tls_server_name, kernel_tls_.kernel)};
  }

  void SetServing(bool serving) {
    serving_ = serving;
    server_->GetHealthCheckService()->SetServingStatus(serving);
    server_->GetHealthCheckService()->SetServingStatus("baton.v1.Worker", serving);
    server_->GetHealthCheckService()->SetServingStatus("", true);  // liveness: the process answers
  }

  void SetDrained() {
    std::lock_guard lock(mutex_);
    drained_ = true;
    changed_.notify_all();
  }

  absl::Status LoadEngine() {
    BATON_ASSIGN_OR_RETURN(LoadedModel loaded, StartUp(config_, state_.progress(), ranks_.get()));
    // A router dials again within two seconds; a worker that chose its own key before could not join the others.
    if (!state_.WaitForKey(kKeyWait))
      LogInfo("worker: no router gave a hash key in {} s, taking {}", Seconds(kKeyWait),
              secret_ ? "that of the cluster's secret" : "a random one");
    BATON_ASSIGN_OR_RETURN(HashKey own, secret_ ? trust::HashKeyOf(*secret_) : HashKey::Random());
    const HashKey key = state_.AdoptKey(own);
    std::unique_ptr<Role> role;
    if (has_role_) {
      const v1::WorkerRole first = config_.role == "prefill" ? v1::WORKER_ROLE_PREFILL : v1::WORKER_ROLE_DECODE;
      BATON_ASSIGN_OR_RETURN(role, roles_.Make(loaded, first, incarnation_));
    }
    state_.SetEngine(
        std::make_shared<EngineShell>(config_, std::move(loaded), key, incarnation_, clock_, std::move(role)));
    SetServing(true);
    return absl::OkStatus();
  }

  // Loader thread.
  void Load() {
    absl::Status status = LoadEngine();
    std::lock_guard lock(mutex_);
    load_status_ = std::move(status);
    load_ended_ = true;
    changed_.notify_all();
  }

  // Io thread: load reports, and the handoff's time.
  void RunTimers() {
    TimePoint report = clock_.Now();
    std::unique_lock lock(mutex_);
    Duration report_every = kLoadInterval;
    while (!changed_.wait_for(lock, has_role_ ? std::min<Duration>(kTick, report_every) : report_every,
                              [&] { return stopping_; })) {
      lock.unlock();
      sessions_.Tick();
      streams_.Look();
      if (std::shared_ptr<EngineShell> engine = state_.engine()) {
        engine->Tick();
        if (clock_.Now() >= report) {
          engine->SetCallsRefused(sessions_.refused() + connections_refused_ + refusals_.total() + streams_.cut_off());
          engine->ReportLoad();
          report_every = engine->report_every();
          report = clock_.Now() + report_every;
        }
      }
      lock.lock();
    }
  }

  const WorkerConfig config_;
  const std::unique_ptr<RankHost> ranks_;  ///< null: one rank. Outlives the engine.
  const bool has_role_;                    ///< not `both`
  const std::string incarnation_;
  const std::shared_ptr<const trust::ClusterSecret> secret_;  ///< null: none
  SteadyClock clock_;
  RouterSessions sessions_{secret_, clock_};
  OpenStreams streams_{clock_};
  WorkerState state_;
  WorkerService service_;
  RoleChanger roles_;
  tls::Refusals refusals_{clock_};
  std::shared_ptr<tls::LiveIdentity> identity_;  ///< null: no TLS
  std::unique_ptr<tls::GrpcTls> tls_;            ///< of identity_
  tls::KernelTlsChoice kernel_tls_;              ///< for KV; made with identity_
  std::unique_ptr<net::GrpcAcceptor> acceptor_;  ///< outlives the server
  std::unique_ptr<grpc::Server> server_;
  std::atomic<int64_t> connections_refused_{0};
  std::atomic<bool> serving_{false};
  std::thread loader_, io_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool load_ended_ = false, drained_ = false, stopping_ = false;
  absl::Status load_status_;
};

absl::StatusOr<std::unique_ptr<WorkerServer>> WorkerServer::Start(const WorkerConfig& config, std::string version,
                                                                  RoleFactory make_role,
                                                                  std::unique_ptr<RankHost> ranks) {
  BATON_RETURN_IF_ERROR(config.Validate());
  if (const auto told = net::AdvertisedHost(config.host, config.advertise_host); !told.ok())
    return absl::FailedPreconditionError(StrCat("--advertise-host: ", told.status().message()));
  BATON_ASSIGN_OR_RETURN(std::optional<HashKey> key, KeyOf(config));
  std::shared_ptr<const trust::ClusterSecret> secret;
  if (!config.cluster_secret_file.empty()) {
    BATON_ASSIGN_OR_RETURN(secret, trust::ClusterSecret::Read(config.cluster_secret_file));
  }
  BATON_ASSIGN_OR_RETURN(std::string incarnation, NewIncarnation());
  if (!ranks) {
    BATON_ASSIGN_OR_RETURN(ranks, StartRankThreads(config));
  }
  auto parts = std::make_unique<Parts>(config, std::move(version), std::move(incarnation), key, std::move(secret),
                                       std::move(make_role), std::move(ranks));
  BATON_RETURN_IF_ERROR(parts->Listen());
  return std::unique_ptr<WorkerServer>(new WorkerServer(std::move(parts)));
}

WorkerServer::WorkerServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
WorkerServer::~WorkerServer() = default;
uint16_t WorkerServer::port() const { return parts_->port(); }
bool WorkerServer::WaitReady(Duration timeout) const { return parts_->WaitReady(timeout); }
absl::Status WorkerServer::LoadStatus() const { return parts_->LoadStatus(); }
bool WorkerServer::Serving() const { return parts_->Serving(); }
StartUpProgress::View WorkerServer::Progress() const { return parts_->Progress(); }
absl::Status WorkerServer::Health() const { return parts_->Health(); }
void WorkerServer::Drain() { parts_->Drain(); }
bool WorkerServer::WaitDrained(Duration timeout) const { return parts_->WaitDrained(timeout); }
void WorkerServer::Stop() { parts_->Stop(); }

}  // namespace baton::worker
