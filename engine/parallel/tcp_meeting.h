// How the ranks of a group that are processes find each other: rank 0 listens at an address that all know, the others
// come in any order and dial each other at the addresses that rank 0 hands out. Every connection begins with the
// greeting of the cluster secret.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/parallel/pulse.h"
#include "engine/parallel/rank_greeting.h"
#include "engine/parallel/tcp_mesh.h"

namespace baton::engine {

/// Where the other ranks meet rank 0. One thread.
class TcpMeetingPoint {
 public:
  /// Binds `port` (0: a free one) of `host`, an IP address or a name of this machine.
  static absl::StatusOr<std::unique_ptr<TcpMeetingPoint>> Listen(const std::string& host, uint16_t port = 0);
  ~TcpMeetingPoint();
  const std::string& address() const { return address_; }  ///< "host:port"
  /// Waits for ranks 1 … size - 1. `alive` is asked every few ms: its error ends the wait. DeadlineExceeded names who
  /// is missing.
  absl::StatusOr<std::unique_ptr<TcpMesh>> Gather(const RankGroup& group, const std::function<absl::Status()>& alive);
  /// After Gather: the connections of the group's pulse, which every rank ≥ 1 dials by DialPulse. As Gather.
  absl::StatusOr<std::vector<Pulse::Peer>> GatherPulse(RankGroup group, const std::function<absl::Status()>& alive);
  /// Connections that both turned away.
  int64_t refused() const { return refused_; }

 private:
  TcpMeetingPoint(int listener, std::string address) : listener_(listener), address_(std::move(address)) {}
  const int listener_;
  const std::string address_;
  int64_t refused_ = 0;
};

/// Rank `group.rank` ≥ 1 joins rank 0 at `address` and asks again, for as long as its patience lasts, when rank 0 is
/// not there yet. Unavailable, DeadlineExceeded: rank 0 or a peer cannot be reached. Else rank 0 refuses it, and why.
absl::StatusOr<std::unique_ptr<TcpMesh>> JoinTcpMesh(const std::string& address, const RankGroup& group);
/// After JoinTcpMesh: its connection to rank 0 for the pulse. As JoinTcpMesh.
absl::StatusOr<std::vector<Pulse::Peer>> DialPulse(const std::string& address, RankGroup group);

}  // namespace baton::engine
