// Landing over TCP: the message is the data, and the receiver writes. Also the message half of the shared-memory
// transport, which puts the bytes itself. Thread: the transfer thread.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/net/vain_tries.h"
#include "common/str_cat.h"
#include "common/trust/greeting.h"
#include "common/trust/peer_trust.h"
#include "kvtransfer/tcp/connection.h"
#include "kvtransfer/transport.h"

namespace baton {

struct TcpOptions {
  std::string host = "127.0.0.1";  ///< IPv4 address to listen on, and what peers are told
  uint16_t port = 0;               ///< 0: any
  LandingShape landing;
  trust::PeerTrust trust;                            ///< without a secret anybody may connect
  size_t max_peers = 4096, max_peers_of_host = 512;  ///< that connected to us and have greeted
};

class TcpTransport : public Transport, private tcp::Connection::Sink {
 public:
  /// Unavailable when it cannot listen; FailedPrecondition: a flag of TLS is missing. `events` must outlive it.
  static absl::StatusOr<std::unique_ptr<TcpTransport>> Create(TcpOptions options, TransportEvents& events);
  ~TcpTransport() override;

  std::string_view name() const override { return "tcp"; }
  std::string path(PeerNumber peer) const override;
  FenceKind fence() const override { return FenceKind::kReceiverWrites; }
  std::string address() const override { return StrCat(name(), ":", ListensAt(listener_)); }
  std::span<std::byte> landing() override { return landing_; }
  absl::StatusOr<PeerNumber> Connect(std::string_view address) override;
  LandingShape landing_of(PeerNumber peer) const override;
  void Write(PeerNumber peer, const LandingPlace& place, std::span<const std::byte> bytes, Done done) override;
  void Send(PeerNumber peer, std::string message, Done done) override;
  void Flush(PeerNumber peer, Done done) override;
  void Close(PeerNumber peer, std::function<void()> fenced) override;
  bool Progress() override;
  int wait_fd() const override { return epoll_; }
  bool waits_for_descriptor() const override {
    return later_.empty() && due_.empty() && held_.empty() && ungreeted_.empty() && !rests_until_;
  }

 protected:
  struct Peer {
    std::unique_ptr<tcp::Connection> connection;
    LandingShape landing;
    bool greeted = false;
    std::map<uint64_t, Done> flushes;
    std::vector<std::pair<LandingPlace, std::pair<std::span<const std::byte>, Done>>> early;  ///< before the greeting
    bool accepted = false;
    std::string host;                                 ///< where an accepted one is
    std::optional<boost::asio::ip::address> in_vain;  ///< the same, where tries in vain are counted, until it greets
    bool watches_write = false;
    bool due = false;  ///< in due_
  };
  TcpTransport(TcpOptions options, TransportEvents& events, int listener);
  // ---- the sockets, where they are other ones than TCP's
  virtual std::string ListensAt(int listener) const { return tcp::LocalAddress(listener); }
  virtual absl::StatusOr<int> Dial(const std::string& where) { return tcp::Dial(where); }
  virtual std::string HostOf(int accepted) const;
  /// Before a word is heard or said. Error: the connection is closed.
  virtual absl::Status MayStay(int /*socket*/) const { return absl::OkStatus(); }
  /// Before the first bytes.
  virtual void OnMade(tcp::Connection&) const {}
  /// The peer's landing shape is known.
  virtual absl::Status OnGreeted(PeerNumber, Peer&) { return absl::OkStatus(); }
  /// The peer's greeting is here and the bytes fit.
  virtual void Put(PeerNumber number, Peer& peer, const LandingPlace& place, std::span<const std::byte> bytes,
                   Done done);
  virtual void Forget(PeerNumber) {}
  Peer* Find(PeerNumber peer);
  void Later(std::function<void()> work) { later_.push_back(std::move(work)); }

  const TcpOptions options_;
  TransportEvents& events_;
  std::span<std::byte> landing_;  ///< a mapping of its own

 private:
  PeerNumber Add(int socket, bool accepted, std::shared_ptr<const tls::Context> tls);
  bool Pump(PeerNumber number);
  bool PumpOut(PeerNumber number);
  Peer* StaysAfter(PeerNumber number, const absl::Status& status);
  void WriteSoon(PeerNumber number, Peer& peer);
  bool Accept();
  absl::Status MayCome(const std::optional<boost::asio::ip::address>& from) const;
  void ListenAgain();
  void Lose(PeerNumber number, const absl::Status& why);
  void Watch(Peer& peer);
  void PutChecked(PeerNumber number, Peer& peer, const LandingPlace& place, std::span<const std::byte> bytes,
                  Done done);
  void DropSilent();
  absl::Status Admit(tcp::Connection& from, const tcp::FrameHeader& header) override;
  absl::Status CheckRoom(const Peer& peer) const;
  absl::Status Greet(PeerNumber number, Peer& peer, std::string_view payload);
  absl::Status OnFrame(tcp::Connection& from, const tcp::FrameHeader& header, std::string_view payload) override;
  std::byte* PlaceFor(tcp::Connection& from, const tcp::FrameHeader& header) override;

  const int listener_;
  std::optional<std::chrono::steady_clock::time_point> rests_until_;  ///< the listener: no descriptor was left
  int epoll_ = -1;
  std::map<PeerNumber, Peer> peers_;
  std::vector<PeerNumber> held_;  ///< whose bytes have come and wait for the next turn
  std::vector<PeerNumber> due_;   ///< to whom something was queued since the last turn
  std::deque<std::pair<std::chrono::steady_clock::time_point, PeerNumber>> ungreeted_;  ///< accepted, oldest first
  const SteadyClock clock_;
  net::VainTries vain_;                                 ///< connections that did not greet
  std::map<std::string, size_t, std::less<>> greeted_;  ///< accepted and greeted, by host
  size_t all_greeted_ = 0;
  PeerNumber next_peer_ = 1;
  uint64_t next_flush_ = 1;
  std::vector<std::function<void()>> later_;  ///< Dones that must not come from inside a call
};

}  // namespace baton
