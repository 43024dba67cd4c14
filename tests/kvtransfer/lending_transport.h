// Another transport (TCP), and beside it a network's device that reads lent memory of this process, as unkind as the
// contract of Transport: a read ends when a test, or a seed, says so, and what a broken connection was reading still
// comes, until the peer is fenced.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
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
  /// Over what `make` makes; the seed decides when reads end and come.
  LendingTransport(const std::function<std::unique_ptr<Transport>(TransportEvents&)>& make, TransportEvents& events,
                   Lands lands, uint64_t seed)
      : events_(events), lands_(std::move(lands)), random_(seed), inner_(make(*this)) {}

  // ---- what a test decides
  absl::Status refuses;      ///< to lend, or to take anything
  bool holds = false;        ///< reads wait for Finish
  bool loses = false;        ///< they end well, and nothing comes
  bool holds_fence = false;  ///< so long a peer that is lost or closed has no fence
  size_t reads = 0;          ///< that were begun
  size_t came_late = 0;      ///< of broken connections, by chance

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
    for (const auto& [peer, fenced] : std::exchange(fences_, {})) fenced();
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
    const auto his = [peer](const Reading& one) { return one.peer == peer; };
    if (!holds_fence && std::ranges::none_of(late_, his)) return inner_->Close(peer, std::move(fenced));
    inner_->Close(peer, [] {});
    fences_.emplace_back(peer, std::move(fenced));
    if (!holds_fence && !random_) Fence();
  }
  void Release(PeerNumber peer) override { inner_->Release(peer); }
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
    if (random_) return inner_->Progress() | MoveByChance();
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
  /// Some of what is read ends, or comes late; who has nothing under way any more is fenced, and so are others at
  /// times.
  bool MoveByChance() {
    const bool moved = !reading_.empty() || !late_.empty() || !fences_.empty();
    for (Reading& one : std::exchange(reading_, {})) {
      if ((*random_)() % 3 != 0) {
        reading_.push_back(std::move(one));
        continue;
      }
      lands_(one.to, one.Bytes());
      one.done(absl::OkStatus());
    }
    for (Reading& one : std::exchange(late_, {})) {
      if ((*random_)() % 8 != 0) {
        late_.push_back(std::move(one));
        continue;
      }
      std::vector<std::byte> bytes = one.Bytes();
      bytes.resize((*random_)() % (bytes.size() + 1));
      lands_(one.to, std::move(bytes));
      ++came_late;
    }
    for (auto& [peer, fenced] : std::exchange(fences_, {})) {
      const auto his = [peer](const Reading& one) { return one.peer == peer; };
      if (std::ranges::any_of(late_, his) && (*random_)() % 16 != 0) {
        fences_.emplace_back(peer, std::move(fenced));
        continue;
      }
      std::erase_if(late_, his);
      fenced();
    }
    return moved;
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
  std::vector<std::pair<PeerNumber, std::function<void()>>> fences_;
  std::optional<std::mt19937_64> random_;
  std::unique_ptr<Transport> inner_;
};

}  // namespace baton
