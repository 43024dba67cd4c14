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

/// Of frames and notes, and of the pulse's words. Ranks of another one are refused by name
/// (worker/ranks/group_terms.h).
inline constexpr int kFrameForm = 2;

/// The connections of one rank. Exchange: one thread at a time. Abort: any thread.
class TcpMesh {
 public:
  /// One frame to, or from, a peer. Lengths must be what the other side has.
  struct Out {
    int peer = 0;
    std::span<const std::byte> data;
    bool note = false;  ///< as Note sends it, without data
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
  /// Tells `peer` that this rank lives and goes on, though it has nothing to say yet: who waits for it waits on. As
  /// Exchange; `peer` need not wait. At most now and then: what nobody reads stays in the sockets.
  absl::Status Note(int peer);
  /// What has moved here so far, notes too; whom Exchange waits for, -1: nobody. Any thread.
  uint64_t moved() const { return moved_; }
  int waits_for() const { return waits_for_; }
  void Abort(const absl::Status& why);
  /// As Communicator::OnBroken.
  void OnBroken(std::function<void(const absl::Status&)> hook);
  /// From now on a peer that moves nothing for so long is lost, though its process may live. Before: for ever.
  void SetPatience(Duration patience) { patience_ms_ = static_cast<int>(Milliseconds(patience)); }
  /// Not OK: a peer was lost that way. Any thread.
  absl::Status Lost() const;
  /// Not OK: no call will do any more, whatever broke it. Any thread.
  absl::Status broken() const;

 private:
  /// A frame's progress on one socket, in one direction: an 8-byte length, then the bytes.
  struct Progress {
    uint64_t length = 0;
    uint64_t moved = 0;  ///< of both
    bool Done(uint64_t bytes) const { return moved == sizeof(length) + bytes; }
  };
  absl::Status Push(const Out& out, Progress& at);
  absl::Status Pull(const In& in, Progress& at);
  absl::Status Move(std::span<const Out> outs, std::span<const In> ins);

  const int rank_;
  const std::vector<RankSocket> sockets_;
  std::atomic<int> patience_ms_{-1}, waits_for_{-1};
  std::atomic<uint64_t> moved_{0};
  mutable std::mutex mutex_;
  absl::Status broken_, lost_;  ///< guarded by mutex_, as what follows
  std::vector<std::function<void(const absl::Status&)>> hooks_;
};

}  // namespace baton::engine
