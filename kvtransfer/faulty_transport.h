// A transport that damages some of the slots it writes, for tests of real processes: a flipped bit, two lines swapped,
// the end missing, stale bytes of the slot before. Everything else is the inner transport's. The same seed damages the
// same writes. Writes of self-tests (of no ticket) are damaged all or none.
#pragma once

#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "kvtransfer/transport.h"

namespace baton {

class FaultyTransport final : public Transport {
 public:
  /// `rate`: the share of writes that are damaged, 0…1; `tests`: all writes of self-tests are.
  FaultyTransport(std::unique_ptr<Transport> inner, double rate, bool tests, uint64_t seed)
      : inner_(std::move(inner)), rate_(rate), tests_(tests), random_(seed) {}

  std::string_view name() const override { return inner_->name(); }
  std::string path(PeerNumber peer) const override { return inner_->path(peer); }
  FenceKind fence() const override { return inner_->fence(); }
  std::string address() const override { return inner_->address(); }
  std::span<std::byte> landing() override { return inner_->landing(); }
  absl::StatusOr<PeerNumber> Connect(std::string_view address) override { return inner_->Connect(address); }
  LandingShape landing_of(PeerNumber peer) const override { return inner_->landing_of(peer); }
  void Write(PeerNumber peer, const LandingPlace& place, std::span<const std::byte> bytes, Done done) override;
  void Send(PeerNumber peer, std::string message, Done done) override {
    inner_->Send(peer, std::move(message), std::move(done));
  }
  void Flush(PeerNumber peer, Done done) override { inner_->Flush(peer, std::move(done)); }
  void Close(PeerNumber peer, std::function<void()> fenced) override { inner_->Close(peer, std::move(fenced)); }
  void Release(PeerNumber peer) override { inner_->Release(peer); }
  absl::StatusOr<std::string> Lend(std::span<std::byte> memory) override { return inner_->Lend(memory); }
  absl::Status TakeInto(std::span<std::byte> memory) override { return inner_->TakeInto(memory); }
  void Read(PeerNumber peer, std::string_view lent, uint64_t at, std::span<std::byte> to, Done done) override {
    inner_->Read(peer, lent, at, to, std::move(done));
  }
  bool Progress() override { return inner_->Progress(); }
  int wait_fd() const override { return inner_->wait_fd(); }

 private:
  void FlipBit(std::vector<std::byte>& slot);
  void Damage(std::vector<std::byte>& slot);

  const std::unique_ptr<Transport> inner_;
  const double rate_;
  const bool tests_;
  std::mt19937_64 random_;
  std::vector<std::byte> before_;  ///< the end of the slot written last
};

}  // namespace baton
