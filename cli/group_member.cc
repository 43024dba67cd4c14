#include "cli/group_member.h"

#include <chrono>
#include <thread>
#include <utility>

#include "cli/rank_processes.h"
#include "common/clock.h"
#include "common/rank_loss.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "common/tls/peer_tls.h"
#include "decode_worker/rank_landings.h"
#include "engine/parallel/tcp_communicator.h"
#include "engine/parallel/tcp_meeting.h"
#include "prefill_worker/rank_senders.h"
#include "worker/ranks/rank.h"

namespace baton::cli {
namespace {

constexpr Duration kNoteEvery = std::chrono::seconds(1);

worker::CarrierFactory CarrierOf(const std::string& role) {
  if (role == "both") return {};
  return [](const worker::CarrierContext& context) {
    return context.takes_kv ? decode_worker::MakeRankLanding(context) : prefill_worker::MakeRankSender(context);
  };
}

}  // namespace

absl::StatusOr<trust::PeerTrust> TrustOfNodes(const worker::WorkerConfig& config) {
  trust::PeerTrust trust;
  BATON_ASSIGN_OR_RETURN(trust.secret, trust::ClusterSecret::Read(config.cluster_secret_file));
  if (!config.tls_files.ca.empty()) {
    BATON_ASSIGN_OR_RETURN(trust.tls, tls::PeerTls::Open(config.tls_files, config.tls_server_name));
  }
  return trust;
}

absl::StatusOr<std::unique_ptr<GroupMember>> GroupMember::Join(const worker::WorkerConfig& config, int rank,
                                                               const std::string& meet, trust::PeerTrust trust) {
  engine::RankGroup group{.trust = std::move(trust), .rank = rank, .size = config.ranks()};
  if (config.nnodes > 1) group.patience = kMeetWithin;
  std::unique_ptr<GroupMember> out(new GroupMember(config, rank));
  out->trust_ = group.trust;
  BATON_ASSIGN_OR_RETURN(out->mesh_, engine::JoinTcpMesh(meet, group));
  const int tensor = config.tensor_parallel_size;
  out->world_ = engine::MakeTcpGroup(out->mesh_, 0, config.ranks());
  if (tensor > 1) out->tensor_ = engine::MakeTcpGroup(out->mesh_, rank / tensor * tensor, tensor);
  if (config.nnodes == 1) return out;  // it dies with the worker, whose child it is
  group.patience = engine::kKnowEachOtherWithin;
  BATON_ASSIGN_OR_RETURN(auto peers, engine::DialPulse(meet, group));
  out->pulse_.emplace(std::move(peers), [mesh = out->mesh_](const absl::Status& loss) { mesh->Abort(loss); });
  return out;
}

absl::Status GroupMember::Run(const std::function<void()>& on_ready) {
  worker::OwnKv kv{.carrier = CarrierOf(config_.role), .trust = trust_};
  const SteadyClock clock;
  bool ready = false;
  TimePoint note_at = clock.Now();
  worker::RankHooks hooks;
  hooks.on_progress = [&](std::string_view, double) {
    if (clock.Now() < note_at) return;
    note_at = clock.Now() + kNoteEvery;
    mesh_->Note(0).IgnoreError();  // what is wrong with the group the next phase finds
  };
  hooks.on_ready = [&] {
    ready = true;
    on_ready();
  };
  const absl::Status status =
      worker::RunRank(config_, rank_, {.tensor = tensor_.get(), .world = world_.get()}, std::move(kv), hooks);
  if (status.ok()) return status;
  const absl::Status cause = absl::IsUnavailable(status) ? Cause(status) : status;
  const std::string text = worker::OfRank(rank_, View(cause.message()));
  const absl::Status mine = IsRankLoss(cause) ? RankLoss(text) : absl::Status(cause.code(), text);
  if (pulse_) pulse_->Fail(ready ? RankLoss(text) : mine);  // of a group that has started one is lost, whatever it was
  return mine;
}

// A closed connection of the mesh is what a loss leads to: which rank was lost, and how, the pulse is told at the same
// time.
absl::Status GroupMember::Cause(const absl::Status& seen) const {
  const SteadyClock clock;
  const TimePoint until = clock.Now() + kCauseWithin;
  while (pulse_ && pulse_->loss().ok() && clock.Now() < until) std::this_thread::sleep_for(kCauseWithin / 100);
  return pulse_ && !pulse_->loss().ok() ? pulse_->loss() : RankLoss(View(seen.message()));
}

void GroupMember::Fail(const absl::Status& why) {
  if (pulse_) pulse_->Fail(why);
  mesh_->Abort(why);
}

}  // namespace baton::cli
