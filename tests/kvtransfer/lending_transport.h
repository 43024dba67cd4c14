// TCP, and beside it a network's device that reads lent memory of this process, as unkind as the contract of Transport:
// a read ends when a test says so, and what a broken connection was reading still comes, until the peer is fenced.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvtransfer/tcp/tcp_transport.h"

namespace baton {

class LendingTransport final : public Transport, private TransportEvents {
 public:
  using Lands = std::function<void(std::span<std::byte> to, std::vector<std::byte> bytes)>;

  LendingTransport(LandingShape landing, TransportEvents& events, Lands lands)
      : events_(events), lands_(std::move(lands)), inner_(TcpTransport::Create({.landing = landing}, *this).value()) {}

  // ---- what a test decides
  absl::Status refuses;      ///< to lend, or to take anything
  bool holds = false;        ///< reads wait for Finish
  bool loses = false;        ///< they end well, and nothing comes
  bool holds_fence = false;  ///< so long a peer that is lost or closed has no fence
  size_t reads = 0;          ///< that were begun

  void Finish() {
    for (Reading& one : std::exchange(reading_, {})) {
      if (!loses) lands_(one.to, one.Bytes());
      one.done(absl::OkStatus());
    }
  }
  /// What was being read when its connection broke comes now, half of it.
  void ComeLate() {
    for (const Reading& one : late_) {
      std::vector<std::byte> bytes = one.Bytes();
      bytes.resize(bytes.size() / 2);
      lands_(one.to, std::move(bytes));
    }
  }
  void Fence() {
    late_.clear();
    for (const auto& fenced : std::exchange(fences_, {})) fenced();
  }
  static std::string NameOf(std::span<std::byte> memory) {
    return std::string(reinterpret_cast<const char*>(&memory), sizeof(memory));
  }

  // ---- Transport
  std::string_view name() const override { return "lending"; }
  FenceKind fence() const override { return inner_->fence(); }
  std::string address() const override { return inner_->address(); }
  std::span<std::byte> landing() override { return inner_->landing(); }
  absl::StatusOr<PeerNumber> Connect(std::string_view address) override { return inner_->Connect(address); }
  LandingShape landing_of(PeerNumber peer) const override { return inner_->landing_of(peer); }
  void Write(PeerNumber peer, const LandingPlace& place, std::span<const std::byte> bytes, Done done) override {
    inner_->Write(peer, place, bytes, std::move(done));
  }
  void Send(PeerNumber peer, std::string message, Done done) override {
    inner_->Send(peer, std::move(message), std::move(done));
  }
  void Flush(PeerNumber peer, Done done) override { inner_->Flush(peer, std::move(done)); }
  void Close(PeerNumber peer, std::function<void()> fenced) override {
    Break(peer);
    if (!holds_fence) return inner_->Close(peer, std::move(fenced));
    inner_->Close(peer, [] {});
    fences_.push_back(std::move(fenced));
  }
  absl::StatusOr<std::string> Lend(std::span<std::byte> memory) override {
    if (!refuses.ok()) return refuses;
    return NameOf(memory);
  }
  absl::Status TakeInto(std::span<std::byte>) override { return refuses; }
  void Read(PeerNumber peer, std::string_view lent, uint64_t at, std::span<std::byte> to, Done done) override {
    std::span<std::byte> memory;
    std::memcpy(&memory, lent.data(), sizeof(memory));
    reading_.push_back({peer, memory.subspan(at, to.size()), to, std::move(done)});
    ++reads;
  }
  bool Progress() override {
    const bool moved = inner_->Progress() || (!holds && !reading_.empty());
    if (!holds) Finish();
    return moved;
  }
  int wait_fd() const override { return inner_->wait_fd(); }

 private:
  struct Reading {
    PeerNumber peer;
    std::span<const std::byte> from;
    std::span<std::byte> to;
    Done done;
    std::vector<std::byte> Bytes() const { return {from.begin(), from.end()}; }
  };
  void Break(PeerNumber peer) {
    for (Reading& one : std::exchange(reading_, {})) {
      if (one.peer != peer) {
        reading_.push_back(std::move(one));
        continue;
      }
      const Done done = std::exchange(one.done, nullptr);
      late_.push_back(std::move(one));
      done(absl::UnavailableError("the connection broke"));
    }
  }
  void OnConnected(PeerNumber peer) override { events_.OnConnected(peer); }
  void OnMessage(PeerNumber peer, std::string_view message) override { events_.OnMessage(peer, message); }
  void OnLost(PeerNumber peer, const absl::Status& why) override {
    Break(peer);
    events_.OnLost(peer, why);
  }
  bool MayLand(PeerNumber peer, const LandingPlace& place) override { return events_.MayLand(peer, place); }

  TransportEvents& events_;
  const Lands lands_;
  std::vector<Reading> reading_, late_;
  std::vector<std::function<void()>> fences_;
  std::unique_ptr<Transport> inner_;
};

}  // namespace baton
