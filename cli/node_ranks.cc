#include "cli/node_ranks.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "cli/exit_code.h"
#include "cli/group_member.h"
#include "cli/rank_children.h"
#include "cli/rank_processes.h"
#include "cli/signals.h"
#include "cli/status_server.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/net/address.h"
#include "common/net/advertise.h"
#include "common/status.h"
#include "worker/process/health_server.h"

namespace baton::cli {
namespace {

constexpr Duration kPoll = std::chrono::milliseconds(50), kRanksEndWithin = std::chrono::seconds(1);

class NodeRanks {
 public:
  NodeRanks(const worker::WorkerConfig& config, const std::vector<std::string>& arguments, std::string ready_file)
      : config_(config), ready_file_(std::move(ready_file)), children_(config_, arguments) {}

  absl::Status Start() {
    BATON_ASSIGN_OR_RETURN(health_, worker::HealthServer::Listen(config_));
    const std::string name = config_.Name(health_->port());
    SetLogName(name);
    BATON_ASSIGN_OR_RETURN(status_page_, StatusServer::Start(config_, [this, name] { return Status(name); }));
    BATON_ASSIGN_OR_RETURN(trust::PeerTrust trust, TrustOfNodes(config_));
    const std::string meet = net::JoinHostPort(config_.master_addr, config_.master_port);
    const int first = config_.first_local_rank();
    for (int rank = first + 1; rank < first + config_.local_ranks(); ++rank)
      BATON_RETURN_IF_ERROR(children_.Start(rank, meet, ""));
    LogInfo("worker: machine {} of {}, ranks {} to {}, goes to {}", config_.node_rank, config_.nnodes, first,
            first + config_.local_ranks() - 1, meet);
    const ExitOnSignal exit_on_signal;
    BATON_ASSIGN_OR_RETURN(member_, GroupMember::Join(config_, first, meet, std::move(trust)));
    met_ = true;
    return absl::OkStatus();
  }

  // Until rank 0 ends the group, or the group is lost.
  absl::Status Follow() {
    rank_ = std::thread([this] {
      status_ = member_->Run([this] { loaded_ = true; });
      done_ = true;
    });
    std::optional<TimePoint> end_at;
    while (!done_) {
      const std::optional<int> signal = WaitForSignal(/*children=*/true, kPoll);
      BATON_RETURN_IF_ERROR(Ready());
      if (signal == SIGINT || signal == SIGTERM) {
        if (end_at) return absl::OkStatus();
        ends_ = true;
        LogInfo("signal {}: waits for rank 0 to end (once more to stop at once)", *signal);
        end_at = clock_.Now() + std::chrono::milliseconds(config_.shutdown_timeout_ms);
      }
      BATON_RETURN_IF_ERROR(member_->loss());
      if (end_at && clock_.Now() >= *end_at)
        return absl::DeadlineExceededError("rank 0 has not ended within --shutdown-timeout-ms");
      if (const absl::Status ended = children_.Health(/*causes_only=*/true); !ended.ok()) return OfItsCause(ended);
    }
    return status_;
  }

  // What still loads or waits is left: the process ends.
  void End(const absl::Status& status) {
    ends_ = true;
    if (member_ && !done_) member_->Fail(status.ok() ? RankLoss("it was told to stop") : status);
    const TimePoint until = clock_.Now() + kRanksEndWithin;
    while (rank_.joinable() && !done_ && clock_.Now() < until) std::this_thread::sleep_for(kPoll / 10);
    if (rank_.joinable()) done_ ? rank_.join() : rank_.detach();
    if (status.ok()) children_.Await(kRanksEndWithin);
  }

 private:
  // Of a start that fails every rank is told why: one that was quicker than the others has ended.
  absl::Status OfItsCause(const absl::Status& ended) const {
    const TimePoint until = clock_.Now() + kCauseWithin;
    while (!loaded_ && !done_ && member_->loss().ok() && clock_.Now() < until) std::this_thread::sleep_for(kPoll / 10);
    if (loaded_) return ended;
    const absl::Status told = done_ ? status_ : member_->loss();
    return told.ok() ? ended : told;
  }
  absl::Status Ready() {
    if (!loaded_ || std::exchange(told_, true)) return absl::OkStatus();
    health_->SetReady(true);
    BATON_ASSIGN_OR_RETURN(const std::string host, net::AdvertisedHost(config_.host, config_.advertise_host));
    std::vector<std::pair<std::string, std::string>> told = {
        {"BATON_WORKER", net::JoinHostPort(host, health_->port())}};
    if (status_page_) told.emplace_back("BATON_STATUS", status_page_->UrlAt(host));
    return WriteReadyFile(ready_file_, told);
  }
  /// On a thread of the page's.
  MachineStatus Status(const std::string& name) const {
    MachineStatus status = MachineOf(config_, name);
    status.ready = loaded_ && !ends_;
    if (!status.ready) status.phase = ends_ ? "ends" : met_ ? "loads" : "waits for the other machines";
    return status;
  }

  const SteadyClock clock_;
  const worker::WorkerConfig config_;
  const std::string ready_file_;
  RankChildren children_;
  std::unique_ptr<worker::HealthServer> health_;
  std::unique_ptr<GroupMember> member_;
  std::thread rank_;
  std::atomic<bool> met_{false}, loaded_{false}, ends_{false}, done_{false};
  absl::Status status_;  ///< of the thread, once it is done
  bool told_ = false;
  std::unique_ptr<StatusServer> status_page_;  ///< null: none; ends first
};

}  // namespace

int RunNodeRanks(const worker::WorkerConfig& config, const std::vector<std::string>& arguments,
                 const std::string& ready_file) {
  NodeRanks node(config, arguments, ready_file);
  absl::Status status = node.Start();
  if (status.ok()) status = node.Follow();
  node.End(status);
  const int code = status.ok() ? kExitOk : Fail(status);
  std::fflush(nullptr);
  std::_Exit(code);  // a thread may still load
}

}  // namespace baton::cli
