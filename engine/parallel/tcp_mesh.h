// One TCP connection between every two ranks, for ranks that are processes. tcp_meeting.h makes it.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "engine/parallel/rank_greeting.h"

namespace baton::engine {

/// The connections of one rank. Exchange: one thread at a time. Abort: any thread.
class TcpMesh {
 public:
  /// One frame to, or from, a peer. Lengths must be what the other side has.
  struct Out {
    int peer = 0;
    std::span<const std::byte> data;
  };
  struct In {
    int peer = 0;
    std::span<std::byte> data;
  };

  /// The sockets: [size], by rank; none at `rank`.
  TcpMesh(int rank, std::vector<RankSocket> sockets) : rank_(rank), sockets_(std::move(sockets)) {}

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(sockets_.size()); }
  /// Sends and receives all of it, whatever the order in which peers come: at most one frame to and one from each.
  /// Unavailable: a peer is gone, or lost (SetPatience). Internal: lengths differ. Either breaks the mesh.
  absl::Status Exchange(std::span<const Out> outs, std::span<const In> ins);
  void Abort(const absl::Status& why);
  /// As Communicator::OnBroken.
  void OnBroken(std::function<void(const absl::Status&)> hook);
  /// From now on a peer that moves nothing for so long is lost, though its process may live. Before: for ever.
  void SetPatience(Duration patience) { patience_ms_ = static_cast<int>(Milliseconds(patience)); }
  /// Not OK: a peer was lost that way. Any thread.
  absl::Status Lost() const;

 private:
  absl::Status Move(std::span<const Out> outs, std::span<const In> ins);

  const int rank_;
  const std::vector<RankSocket> sockets_;
  std::atomic<int> patience_ms_{-1};
  mutable std::mutex mutex_;
  absl::Status broken_, lost_;  ///< guarded by mutex_, as what follows
  std::vector<std::function<void(const absl::Status&)>> hooks_;
};

}  // namespace baton::engine
