// Landing through shared memory on one host: the sender copies into the receiver's slots itself; messages go over a
// unix socket with an abstract name (unix_socket.h), never over a network. The ring is a sealed memfd, so a container's
// small /dev/shm is no limit; its owner gives it to the peer over that socket, behind the greeting (SCM_RIGHTS):
// whoever is another user's or does not know the secret never has it. Nothing here is in TLS.
//
// A stopped process still maps the memory, so the only fence is its exit, seen through a pidfd. Thread: the transfer
// thread.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "kvtransfer/peer_exit.h"
#include "kvtransfer/tcp/tcp_transport.h"

namespace baton {

class ShmTransport final : public TcpTransport {
 public:
  /// Of the options host, port and TLS mean nothing here. Unavailable: it cannot listen. ResourceExhausted when there
  /// is no memory for the ring.
  static absl::StatusOr<std::unique_ptr<ShmTransport>> Create(TcpOptions options, TransportEvents& events);
  ~ShmTransport() override;

  std::string_view name() const override { return "shm"; }
  FenceKind fence() const override { return FenceKind::kPeerExit; }
  std::span<std::byte> slot_of(PeerNumber peer, uint32_t slot) override;
  void Close(PeerNumber peer, std::function<void()> fenced) override;
  void Release(PeerNumber peer) override { exits_.Release(peer); }
  bool Progress() override;

 private:
  struct Mapping {
    std::byte* memory = nullptr;
    size_t bytes = 0;
  };
  ShmTransport(TcpOptions options, TransportEvents& events, int listener, std::string name)
      : TcpTransport(std::move(options), events, listener), socket_name_(std::move(name)) {}
  absl::Status MakeRing();
  std::string ListensAt(int) const override { return socket_name_; }
  absl::StatusOr<int> Dial(const std::string& where) override;
  std::string HostOf(int) const override { return "this machine"; }
  absl::Status MayStay(int socket) const override;
  void OnMade(tcp::Connection& connection) const override { connection.Exchange(memfd_); }
  absl::Status OnGreeted(PeerNumber number, Peer& peer) override;
  absl::StatusOr<Mapping> MapOf(const Peer& peer, int memory) const;
  void Put(PeerNumber number, Peer& peer, const LandingPlace& place, std::span<const std::byte> bytes,
           Done done) override;
  void Forget(PeerNumber number) override;

  const std::string socket_name_;
  int memfd_ = -1;  ///< none: it only sends
  std::map<PeerNumber, Mapping> mapped_;
  PeerExits exits_;  ///< of greeted peers, where they may write memory of ours
};

}  // namespace baton
