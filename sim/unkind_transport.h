// A transport whose messages are lost, said twice, late, in another order, cut short or changed on the way, and whose
// slots are damaged. The first message of a connection, the hello, arrives: what a connection begins with is the
// transport's own.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kvtransfer/transport.h"
#include "sim/scenario.h"
#include "sim/timeline.h"

namespace baton::sim {

/// What was done, so that tests can see that it was.
struct FaultCounters {
  int drop = 0, duplicate = 0, delay = 0, reorder = 0, truncate = 0, corrupt = 0, slots = 0;
  int late = 0;  ///< between routers and workers
};

/// Harms a message's bytes: cuts them short or flips a bit.
void Truncate(std::string& bytes, Timeline& time);
void FlipBit(std::string& bytes, Timeline& time);

class UnkindTransport final : public Transport {
 public:
  /// `events`: whom `inner` calls back. `faults_on`: whether there are faults now. The references must outlive it.
  UnkindTransport(std::unique_ptr<Transport> inner, std::unique_ptr<TransportEvents> events,
                  const MessageFaults& faults, double slot_damage, const bool& faults_on, FaultCounters& counters,
                  Timeline& time)
      : events_(std::move(events)),
        inner_(std::move(inner)),
        faults_(faults),
        slot_damage_(slot_damage),
        faults_on_(faults_on),
        counters_(counters),
        time_(time) {}

  std::string_view name() const override { return inner_->name(); }
  FenceKind fence() const override { return inner_->fence(); }
  std::string address() const override { return inner_->address(); }
  std::span<std::byte> landing() override { return inner_->landing(); }
  absl::StatusOr<PeerNumber> Connect(std::string_view address) override { return inner_->Connect(address); }
  LandingShape landing_of(PeerNumber peer) const override { return inner_->landing_of(peer); }
  void Write(PeerNumber peer, const LandingPlace& place, std::span<const std::byte> bytes, Done done) override;
  void Send(PeerNumber peer, std::string message, Done done) override;
  void Flush(PeerNumber peer, Done done) override { inner_->Flush(peer, std::move(done)); }
  void Close(PeerNumber peer, std::function<void()> fenced) override { inner_->Close(peer, std::move(fenced)); }
  void Release(PeerNumber peer) override { inner_->Release(peer); }
  bool Progress() override;
  int wait_fd() const override { return inner_->wait_fd(); }

 private:
  struct Late {
    PeerNumber peer = 0;
    std::string message;
    Done done;
    TimePoint due{};  ///< it leaves
  };
  bool Happens(double rate) { return faults_on_ && time_.Chance(rate); }

  const std::unique_ptr<TransportEvents> events_;
  const std::unique_ptr<Transport> inner_;
  const MessageFaults faults_;
  const double slot_damage_;
  const bool& faults_on_;
  FaultCounters& counters_;
  Timeline& time_;
  std::map<PeerNumber, int> sent_;
  std::vector<Late> late_;
};

}  // namespace baton::sim
