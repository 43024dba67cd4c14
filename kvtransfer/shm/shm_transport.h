// Landing through shared memory on one host: the sender copies into the receiver's slots itself; messages go over the
// TCP transport's connection. The ring is a memfd, so a container's small /dev/shm is no limit; the sender opens it
// through /proc, which needs the same user and PID namespace: where that fails the connection is lost with the reason.
//
// A stopped process still maps the memory, so the only fence is its exit, seen through a pidfd. Thread: the transfer
// thread.
#pragma once

#include <map>
#include <memory>

#include "kvtransfer/peer_exit.h"
#include "kvtransfer/tcp/tcp_transport.h"

namespace baton {

class ShmTransport final : public TcpTransport {
 public:
  /// As TcpTransport::Create; ResourceExhausted when there is no memory for the ring.
  static absl::StatusOr<std::unique_ptr<ShmTransport>> Create(TcpOptions options, TransportEvents& events);
  ~ShmTransport() override;

  std::string_view name() const override { return "shm"; }
  FenceKind fence() const override { return FenceKind::kPeerExit; }
  std::span<std::byte> slot_of(PeerNumber peer, uint32_t slot) override;
  void Close(PeerNumber peer, std::function<void()> fenced) override;
  bool Progress() override;

 private:
  struct Mapping {
    std::byte* memory = nullptr;
    size_t bytes = 0;
  };
  ShmTransport(TcpOptions options, TransportEvents& events, int listener)
      : TcpTransport(std::move(options), events, listener) {}
  absl::Status MakeRing();
  std::string GreetingTail() const override;
  absl::Status OnGreeted(PeerNumber number, Peer& peer, std::string_view tail) override;
  void Put(PeerNumber number, Peer& peer, const LandingPlace& place, std::span<const std::byte> bytes,
           Done done) override;
  void Forget(PeerNumber number) override;

  int memfd_ = -1;
  uint64_t nonce_ = 0;  ///< last word of the ring's file: proves that a peer opened this ring and no other
  std::map<PeerNumber, Mapping> mapped_;
  PeerExits exits_;  ///< of greeted peers, where they may write memory of ours
};

}  // namespace baton
