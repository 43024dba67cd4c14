// The connections on which rank 0 of a worker tells its other ranks, where they are processes, what to do about
// handoffs, and hears what came of it: one line to each, of kvtransfer/rank_line_codec.h's messages, greeted by the
// group's secret. A line that breaks is a rank that is lost.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/limited_lines.h"
#include "common/trust/peer_trust.h"
#include "kvtransfer/transport.h"
#include "worker/ranks/rank_lines.h"

namespace baton::worker {

/// What rank 0 tells the others by the mesh. On the wire as it stands here.
struct KvInvitation {
  std::array<char, 112> address{};  ///< where it listens, as text, zero behind it
  std::array<uint8_t, 16> word{};   ///< random: who says it on a line was told it
};

/// Rank 0's ends. One thread at a time: the one that waits for the ranks, then the transfer thread.
class KvLines final : public RankLines, private TransportEvents {
 public:
  /// Listens on `host`, any port, for ranks 1 … ranks - 1, which prove `trust`. Unavailable: it cannot.
  static absl::StatusOr<std::unique_ptr<KvLines>> Open(const std::string& host, int ranks, trust::PeerTrust trust);
  const KvInvitation& invitation() const { return invitation_; }
  int ranks() const override { return static_cast<int>(peers_.size()); }
  /// That have come and are there.
  int seated() const { return static_cast<int>(ranks_.size()); }

  void Listen(OnNews on_news) override { on_news_ = std::move(on_news); }
  /// Moves things until `done` says so. DeadlineExceeded, Unavailable: not within `patience`, or a rank was lost.
  absl::Status Await(const std::function<bool()>& done, Duration patience, std::string_view what);
  /// Await that all ranks have come, tell them to begin (anew), and await what comes of it: the first rank's error.
  absl::Status Begin(const std::string& incarnation, const std::string& numerics_id, bool takes_kv, Duration patience);
  void Send(int rank, const RankOrder& order) override;
  Transport& transport() { return *transport_; }

 private:
  explicit KvLines(int ranks) : peers_(static_cast<size_t>(ranks)) {}
  void OnConnected(PeerNumber) override {}
  void OnMessage(PeerNumber peer, std::string_view message) override;
  void OnLost(PeerNumber peer, const absl::Status& why) override;
  void OnRefused(PeerNumber, std::string_view host, const absl::Status& why) override;
  bool MayLand(PeerNumber, const LandingPlace&) override { return false; }
  absl::Status Seat(PeerNumber peer, const v1::RankNews& news);
  void OnBegun(int rank, const v1::RankNews::Begun& begun);

  KvInvitation invitation_;
  std::vector<PeerNumber> peers_;  ///< by rank; 0: not there
  std::map<PeerNumber, int> ranks_;
  OnNews on_news_;
  absl::Status lost_;
  int begun_ = 0;
  absl::Status not_begun_;
  const SteadyClock clock_;
  LimitedLines lines_{clock_};            ///< about who is no rank
  std::unique_ptr<Transport> transport_;  ///< last: it calls back
};

/// Another rank's end. Thread: its transfer thread.
class KvLine final : private TransportEvents {
 public:
  using OnOrder = std::function<void(const RankOrder& order)>;
  using OnBroken = std::function<void(const absl::Status& why)>;

  /// Dials rank 0. `on_broken`: once, and nothing comes after it.
  static absl::StatusOr<std::unique_ptr<KvLine>> Dial(const KvInvitation& invitation, int rank, const std::string& host,
                                                      trust::PeerTrust trust, OnOrder on_order, OnBroken on_broken);
  void Send(const RankNews& news);
  Transport& transport() { return *transport_; }

 private:
  KvLine(OnOrder on_order, OnBroken on_broken) : on_order_(std::move(on_order)), on_broken_(std::move(on_broken)) {}
  void OnConnected(PeerNumber) override {}
  void OnMessage(PeerNumber peer, std::string_view message) override;
  void OnLost(PeerNumber peer, const absl::Status& why) override;
  bool MayLand(PeerNumber, const LandingPlace&) override { return false; }

  const OnOrder on_order_;
  const OnBroken on_broken_;
  PeerNumber peer_ = 0;
  std::unique_ptr<Transport> transport_;  ///< last: it calls back
};

}  // namespace baton::worker
