#include "cli/rank_processes.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <utility>

#include "cli/group_member.h"
#include "cli/rank_children.h"
#include "cli/signals.h"
#include "common/log.h"
#include "common/net/address.h"
#include "common/net/socket_address.h"
#include "common/rank_loss.h"
#include "common/status.h"
#include "common/trust/cluster_secret.h"
#include "engine/parallel/pulse.h"
#include "engine/parallel/tcp_communicator.h"
#include "engine/parallel/tcp_meeting.h"
#include "worker/ranks/start_watch.h"
#include "worker/ranks/step_watch.h"

namespace baton::cli {
namespace {

constexpr Duration kEndWithin = std::chrono::seconds(5);

class RankProcesses final : public worker::RankHost {
 public:
  RankProcesses(const worker::WorkerConfig& config, const std::vector<std::string>& arguments)
      : config_(config),
        children_(config_, arguments),
        start_(config.ranks(), std::chrono::milliseconds(config.rank_start_timeout_ms)) {}

  ~RankProcesses() override {
    pulse_.reset();
    if (!mesh_) return;
    mesh_->Abort(absl::UnavailableError("the worker ends"));
    children_.Await(kEndWithin);
  }

  // Of one machine: ranks on loopback, with a secret of their own.
  absl::Status StartHere() {
    host_ = net::LoopbackHost();
    BATON_ASSIGN_OR_RETURN(const auto meeting, engine::TcpMeetingPoint::Listen(host_));
    const std::string text = trust::ClusterSecret::NewText();
    BATON_ASSIGN_OR_RETURN(const auto secret, trust::ClusterSecret::Of(text));
    for (int rank = 1; rank < config_.ranks(); ++rank)
      BATON_RETURN_IF_ERROR(children_.Start(rank, meeting->address(), text));
    trust_ = {.secret = secret};
    return Gather(*meeting, {.trust = trust_, .size = config_.ranks()});
  }

  // Of several machines: this one's ranks and those that come.
  absl::Status StartNodes() {
    BATON_ASSIGN_OR_RETURN(trust_, TrustOfNodes(config_));
    BATON_ASSIGN_OR_RETURN(const auto meeting, engine::TcpMeetingPoint::Listen(
                                                   config_.master_addr, static_cast<uint16_t>(config_.master_port)));
    for (int rank = 1; rank < config_.local_ranks(); ++rank)
      BATON_RETURN_IF_ERROR(children_.Start(rank, meeting->address(), ""));
    LogInfo("worker: {} ranks of {} machines meet at {}", config_.ranks(), config_.nnodes, meeting->address());
    host_ = config_.master_addr;
    const engine::RankGroup group{.trust = trust_, .size = config_.ranks(), .patience = kMeetWithin};
    const ExitOnSignal exit_on_signal;
    BATON_RETURN_IF_ERROR(Gather(*meeting, group));
    engine::RankGroup all_here = group;
    all_here.patience = engine::kKnowEachOtherWithin + kCauseWithin;  // they say first whom they do not reach
    BATON_ASSIGN_OR_RETURN(auto peers, meeting->GatherPulse(all_here, [this] { return Health(); }));
    pulse_.emplace(std::move(peers), [mesh = mesh_](const absl::Status& loss) { mesh->Abort(loss); });
    return absl::OkStatus();
  }

  engine::RankLinks links() override { return {.tensor = tensor_.get(), .world = world_.get()}; }
  std::vector<worker::SharedMemory>& kv() override { return none_; }
  trust::PeerTrust trust() const override { return trust_; }
  std::string host() const override { return host_; }

  void Note(std::string_view phase, double fraction) override { start_.Note(0, phase, fraction); }
  void Started(std::shared_ptr<const std::atomic<uint64_t>> running) override {
    started_ = true;
    start_.Over();
    mesh_->SetPatience(std::chrono::milliseconds(config_.rank_timeout_ms));
    watch_.Watch(std::move(running), std::chrono::milliseconds(config_.rank_timeout_ms));
  }

  absl::Status Health() override {
    const absl::Status seen = Seen();
    if (!seen.ok() && started_ && pulse_) pulse_->Fail(seen);  // a machine whose GPUs wait hears of it in no other way
    return seen;
  }

 private:
  absl::Status Seen() {
    BATON_RETURN_IF_ERROR(children_.Health(/*causes_only=*/true));
    if (pulse_) {
      BATON_RETURN_IF_ERROR(pulse_->loss());
    } else {
      BATON_RETURN_IF_ERROR(OfItsCause(children_.Health(/*causes_only=*/false)));
    }
    if (mesh_) BATON_RETURN_IF_ERROR(OfItsCause(mesh_->Lost()));
    if (mesh_) BATON_RETURN_IF_ERROR(StartHealth());
    if (mesh_) BATON_RETURN_IF_ERROR(OfItsCause(Broken()));
    return watch_.Health();
  }
  // A step of rank 0 went wrong: the others may wait for its part, and hear of nothing.
  absl::Status Broken() {
    const absl::Status why = mesh_->broken();
    if (why.ok()) return why;
    const absl::Status loss = IsRankLoss(why) ? why : RankLoss(View(why.message()));
    if (pulse_) pulse_->Fail(loss);
    return loss;
  }
  absl::Status StartHealth() {
    absl::Status start = start_.Health({.moved = mesh_->moved(), .waits_for = mesh_->waits_for()});
    if (start.ok()) return start;
    if (pulse_) pulse_->Fail(start);
    mesh_->Abort(start);  // who waits for another goes on, and the start ends
    return start;
  }
  // Of one machine: the others' sockets close, and they end, before the kernel tells how the first one ended.
  absl::Status OfItsCause(const absl::Status& loss) {
    if (loss.ok() || pulse_) return loss;
    const absl::Status cause = children_.AwaitCause(kCauseWithin);
    return cause.ok() ? loss : cause;
  }

  absl::Status Gather(engine::TcpMeetingPoint& meeting, const engine::RankGroup& group) {
    BATON_ASSIGN_OR_RETURN(mesh_, meeting.Gather(group, [this] { return Health(); }));
    world_ = engine::MakeTcpGroup(mesh_, 0, config_.ranks());
    if (config_.tensor_parallel_size > 1) tensor_ = engine::MakeTcpGroup(mesh_, 0, config_.tensor_parallel_size);
    return absl::OkStatus();
  }

  const worker::WorkerConfig config_;
  RankChildren children_;
  std::vector<worker::SharedMemory> none_;
  trust::PeerTrust trust_;
  std::string host_;
  std::shared_ptr<engine::TcpMesh> mesh_;
  std::unique_ptr<engine::Communicator> world_, tensor_;
  worker::StartWatch start_;
  worker::StepWatch watch_;
  std::atomic<bool> started_{false};
  std::optional<engine::Pulse> pulse_;  ///< of several machines
};

}  // namespace

absl::StatusOr<std::unique_ptr<worker::RankHost>> StartRankProcesses(const worker::WorkerConfig& config,
                                                                     const std::vector<std::string>& arguments) {
  auto ranks = std::make_unique<RankProcesses>(config, arguments);
  BATON_RETURN_IF_ERROR(config.nnodes > 1 ? ranks->StartNodes() : ranks->StartHere());
  return std::unique_ptr<worker::RankHost>(std::move(ranks));
}

}  // namespace baton::cli
