// A rank other than 0 in a group of processes: how it joins, computes and ends.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/trust/peer_trust.h"
#include "engine/parallel/communicator.h"
#include "engine/parallel/pulse.h"
#include "engine/parallel/tcp_mesh.h"
#include "worker/worker_config.h"

namespace baton::cli {

/// What ranks of several machines prove to each other: --cluster-secret-file, and TLS where --tls-ca is given.
absl::StatusOr<trust::PeerTrust> TrustOfNodes(const worker::WorkerConfig& config);

class GroupMember {
 public:
  /// Waits for rank 0 at `meet` and for all others. As engine::JoinTcpMesh.
  static absl::StatusOr<std::unique_ptr<GroupMember>> Join(const worker::WorkerConfig& config, int rank,
                                                           const std::string& meet, trust::PeerTrust trust);

  /// worker::RunRank. What ends it is told to rank 0. The result is a RankLoss where another rank was the cause.
  absl::Status Run(const std::function<void()>& on_ready);
  /// The group ends because of `why`: Run returns soon, unless it loads. Any thread.
  void Fail(const absl::Status& why);
  /// Not OK: the group is lost. Any thread.
  absl::Status loss() const { return pulse_ ? pulse_->loss() : absl::OkStatus(); }

 private:
  GroupMember(const worker::WorkerConfig& config, int rank) : config_(config), rank_(rank) {}
  absl::Status Cause(const absl::Status& seen) const;

  const worker::WorkerConfig config_;
  const int rank_;
  trust::PeerTrust trust_;
  std::shared_ptr<engine::TcpMesh> mesh_;
  std::unique_ptr<engine::Communicator> world_, tensor_;
  std::optional<engine::Pulse> pulse_;  ///< of several machines
};

}  // namespace baton::cli
