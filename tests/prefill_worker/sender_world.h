// A Sender, its engine, a decode worker's end and what the desk would be told; turned by hand.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvtransfer/shm/shm_transport.h"
#include "kvtransfer/tcp/tcp_transport.h"
#include "prefill_worker/sender.h"
#include "sim/stepped_engine.h"
#include "tests/kvtransfer/host_mover.h"
#include "tests/worker/hand_loop.h"
#include "tests/worker/one_rank.h"

namespace baton::prefill_worker {

inline constexpr uint64_t kSlotBytes = 4096;
inline constexpr prefill::PeerId kPeer = 5;
inline const LaneKey kLane{9, 1, 0};

/// A decode worker's end: takes every slot it is sent.
class Decode final : public TransportEvents {
 public:
  explicit Decode(worker::HandLoop& loop, bool shm = false) {
    if (shm)
      transport_ = ShmTransport::Create({.landing = {4, kSlotBytes}}, *this).value();
    else
      transport_ = TcpTransport::Create({.landing = {4, kSlotBytes}}, *this).value();
    loop.Watch(transport_.get());
  }
  void OnConnected(PeerNumber peer) override { peer_ = peer; }
  void OnMessage(PeerNumber, std::string_view bytes) override {
    const auto message = DecodeLaneMessage(bytes);
    ASSERT_TRUE(message.ok()) << message.status();
    if (const auto* hello = std::get_if<LaneHello>(&*message))
      log += "Hello(" + hello->incarnation + ") ", outbox = hello->outbox, buffer_bytes = hello->outbox_buffer_bytes;
    if (std::holds_alternative<ToDecode>(*message)) log += "Lane ";
  }
  void OnLost(PeerNumber, const absl::Status&) override { log += "Lost "; }
  bool MayLand(PeerNumber, const LandingPlace&) override { return true; }
  void Say(const LaneMessage& message) { SayBytes(EncodeLaneMessage(message)); }
  void SayBytes(std::string bytes) {
    transport_->Send(peer_, std::move(bytes), [](const absl::Status&) {});
  }
  void HangUp() {
    transport_->Close(peer_, [] {});
  }
  std::string address() const { return LandingAddresses{ThisMachine(), {transport_->address()}}.Pack(); }
  std::span<const std::byte> Slot(uint32_t slot) {
    return transport_->landing().subspan(slot * kSlotBytes, kSlotBytes);
  }

  std::string log, outbox;
  uint64_t buffer_bytes = 0;  ///< of the outbox

 private:
  std::unique_ptr<Transport> transport_;
  PeerNumber peer_ = 0;
};

/// What the desk would be told.
class Told final : public SenderEvents {
 public:
  void OnPush(const prefill::Event& event) override {
    if (const auto* w = std::get_if<prefill::Written>(&event))
      log += "Written(" + std::string(absl::StatusCodeToString(w->status.code())) + ") " + (w->told ? "Told " : ""),
          why = w->status;
    if (const auto* f = std::get_if<prefill::Flushed>(&event)) log += f->ok ? "Flushed " : "FlushFailed ";
    if (std::holds_alternative<prefill::PeerLost>(event)) log += "PeerLost ";
    if (std::holds_alternative<prefill::FromDecode>(event)) log += "Heard ";
  }
  std::string log;
  absl::Status why;
};

class World {
 public:
  World() : World(false, 0) {}
  /// `buffers`: of a device's outbox.
  World(bool shm, uint32_t buffers, TransportMaker make = {}) : decode(loop, shm) {
    if (buffers > 0) mover = std::make_unique<HostMover>(kSlotBytes, buffers);
    const std::vector<int32_t> prompt = engine::RandomTokens(1, 65);
    BATON_CHECK(h.Add(engine::MakeRequest(1, prompt, 1)).ok());
    h.RunAll();
    kv = h.cache().Match("", "", prompt, 64).kv;
    BATON_CHECK(kv.tables[0].size() == 4);
    const KvSide side = worker::SideOf(h.memory().layout());
    plan = std::make_shared<const TransferPlan>(TransferPlan::Make(side, side, {0, 64}, 32).value());
    LaneHello hello{.incarnation = "p1", .model_digest = "m", .numerics_id = "n", .side = side};
    sender = std::make_unique<Sender>(
        DialOptions{.host = "127.0.0.1", .kinds = {"shm", "tcp"}, .make = std::move(make), .self_test = false},
        kSlotBytes, worker::PoolOf(h.memory(), mover.get()), std::move(hello), clock, loop, told);
  }
  void Until(const std::function<bool()>& enough) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!enough()) {
      loop.Turn();
      ASSERT_LT(std::chrono::steady_clock::now(), end)
          << "took too long; told: " << told.log << "; decode: " << decode.log;
    }
  }
  void Settle() {
    for (int quiet = 0; quiet < 200; quiet = loop.Turn() ? 0 : quiet + 1) continue;
  }
  void Connect() {
    sender->Connect(kPeer, decode.address());
    Until([&] { return decode.log == "Hello(p1) "; });
  }
  WriteOrder MakeWrite(uint32_t slot = 0, uint32_t segment = 0) {
    return {kPeer, kLane, {slot, 1}, {segment}, plan, worker::TablesOf(kv)};
  }

  engine::SteppedEngine h{engine::SteppedEngineOptions{}};
  engine::SequenceKv kv;
  std::shared_ptr<const TransferPlan> plan;
  SteadyClock clock;
  worker::HandLoop loop;
  Told told;
  Decode decode;
  std::unique_ptr<HostMover> mover;
  std::unique_ptr<Sender> sender;
};

}  // namespace baton::prefill_worker
