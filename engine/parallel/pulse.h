// Signs of life between rank 0 and every other rank of a group whose processes live on several machines: a byte each
// half second over connections of their own, whether the group computes or not. Who falls silent, or goes without a
// word, is lost, and rank 0 tells the others. A rank that lives but does not answer within a step is the mesh's to find
// (TcpMesh::SetPatience).
#pragma once

#include <functional>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/rank_loss.h"
#include "engine/parallel/rank_greeting.h"

namespace baton::engine {

/// Owns its connections and a thread.
class Pulse {
 public:
  struct Peer {
    int rank = 0;
    RankSocket socket;
  };
  struct Pace {
    Duration interval = std::chrono::milliseconds(500);
    Duration silence = std::chrono::seconds(3);  ///< who says nothing for so long is lost
  };

  /// Rank 0 has a peer for each other rank, which has rank 0. `on_loss`: on the pulse's thread, once, with a RankLoss
  /// or what Fail was given; it must not end the pulse.
  Pulse(std::vector<Peer> peers, std::function<void(const absl::Status&)> on_loss);
  Pulse(std::vector<Peer> peers, std::function<void(const absl::Status&)> on_loss, Pace pace);
  /// Tells the peers that this rank ends in order, unless there was a loss.
  ~Pulse();

  /// This rank ends because of `why`: the peers have a loss that says so. What another start would find as well (a
  /// damaged file, flags that differ, too little memory) is no RankLoss, and is on every rank what it is here.
  void Fail(const absl::Status& why);
  /// The loss, once there is one. Any thread.
  absl::Status loss() const;

 private:
  struct Watched {
    Peer peer;
    TimePoint heard;
    bool ended = false;  ///< in order
    std::string last_words{};
    bool dying = false;  ///< its last words come
  };
  void Run();
  void Beat();
  /// Not OK: the peer is lost. `more`: it has said more, and nothing but this tells of it.
  absl::Status Hear(Watched& one, bool& more);
  absl::StatusOr<size_t> Read(const Watched& from, std::span<char> bytes, bool& more);
  void Send(const Watched& to, std::string_view text);
  void Lose(const absl::Status& why);
  void Say(char kind, std::string_view text);

  const SteadyClock clock_;
  const Pace pace_;
  const std::function<void(const absl::Status&)> on_loss_;
  const int stop_;  ///< an eventfd
  std::vector<Watched> watched_;
  std::mutex wire_;  ///< one thread at a time has the peers' streams
  mutable std::mutex mutex_;
  absl::Status loss_;  ///< guarded by mutex_
  std::thread thread_;
};

}  // namespace baton::engine
