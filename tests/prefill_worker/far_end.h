// A decode worker's end that is dialled with the self-test on, over a real TCP connection.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "common/clock.h"
#include "kvtransfer/lane_codec.h"
#include "kvtransfer/self_test.h"
#include "kvtransfer/tcp/tcp_transport.h"
#include "prefill_worker/handoff/events.h"
#include "tests/worker/hand_loop.h"

namespace baton::prefill_worker {

inline constexpr uint64_t kFarSlotBytes = 4096;
inline constexpr prefill::PeerId kFar = 5;
inline const LaneKey kFarLane{9, 1, 0};

/// A decode worker's end, which answers self-tests.
class FarEnd final : public TransportEvents {
 public:
  enum class Answers : uint8_t { kWell, kThatAllIsWrong, kByHangingUp };
  FarEnd(worker::HandLoop& loop, Answers how) : loop_(loop), how_(how) {
    transport_ = TcpTransport::Create({.landing = {2, kFarSlotBytes}}, *this).value();
    loop_.Watch(transport_.get());
    test_ = std::make_unique<SelfTestSlot>(1, transport_->landing().subspan(kFarSlotBytes), "d1",
                                           [this](PeerNumber peer, SelfTestMessage message) {
                                             if (how_ == Answers::kThatAllIsWrong) message.ok = false;
                                             Send(peer, EncodeLaneMessage(message));
                                           });
  }
  ~FarEnd() override { loop_.Unwatch(transport_.get()); }
  void OnConnected(PeerNumber peer) override { peer_ = peer; }
  void OnMessage(PeerNumber peer, std::string_view bytes) override {
    const auto message = DecodeLaneMessage(bytes).value();
    if (how_ == Answers::kByHangingUp) return loop_.Post([this] { HangUp(); });
    if (const auto* test = std::get_if<SelfTestMessage>(&message)) test_->OnMessage(peer, *test, clock_.Now());
    lanes += std::holds_alternative<ToDecode>(message);
  }
  void OnLost(PeerNumber, const absl::Status&) override { lost = true; }
  bool MayLand(PeerNumber peer, const LandingPlace& place) override { return test_->MayLand(peer, place.slot); }
  void Say(std::string bytes) { Send(peer_, std::move(bytes)); }
  void HangUp() {
    transport_->Close(peer_, [] {});
  }
  std::string address() const { return transport_->address(); }
  bool lost = false;
  int lanes = 0;  ///< messages of lanes that it heard

 private:
  void Send(PeerNumber peer, std::string bytes) {
    transport_->Send(peer, std::move(bytes), [](const absl::Status&) {});
  }
  worker::HandLoop& loop_;
  const Answers how_;
  SteadyClock clock_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<SelfTestSlot> test_;
  PeerNumber peer_ = 0;
};

}  // namespace baton::prefill_worker
