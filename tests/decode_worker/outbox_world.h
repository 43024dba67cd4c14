// The transfer thread's half of the decode side with a device, and a prefill worker that lends its own.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "decode_worker/landing.h"
#include "kvtransfer/slot_format.h"
#include "kvtransfer/tcp/tcp_transport.h"
#include "sim/stepped_engine.h"
#include "tests/kvtransfer/host_mover.h"
#include "tests/worker/hand_loop.h"
#include "tests/worker/one_rank.h"

namespace baton::decode_worker {

inline constexpr uint64_t kOutboxSlotBytes = 4096;
inline const LaneKey kLentLane{9, 1, 0};

/// What the desk would be told.
struct OutboxTold final : LandingEvents {
  void OnHello(WriterId w, LaneHello) override { writer = w; }
  void OnLane(WriterId, ToDecode) override { ++lanes; }
  void OnScattered(const decode::Scattered& placed) override { log += placed.digest_ok ? "Scattered " : "Bad "; }
  void OnWriterLost(WriterId) override { log += "Lost "; }
  void OnWriterFenced(WriterId) override { log += "Fenced "; }
  std::string log;
  WriterId writer = 0;
  int lanes = 0;
};

/// A prefill worker's end, and its device.
struct Lender final : TransportEvents {
  Lender(worker::HandLoop& loop, const std::string& address) {
    transport = TcpTransport::Create({}, *this).value();
    loop.Watch(transport.get());
    peer = transport->Connect(address).value();
  }
  void OnConnected(PeerNumber) override {}
  void OnMessage(PeerNumber, std::string_view bytes) override {
    if (auto message = DecodeLaneMessage(bytes); message.ok()) heard.push_back(std::get<ToPrefill>(*message));
  }
  void OnLost(PeerNumber, const absl::Status&) override {}
  bool MayLand(PeerNumber, const LandingPlace&) override { return false; }
  void Say(const LaneMessage& message) {
    transport->Send(peer, EncodeLaneMessage(message), [](const absl::Status&) {});
  }

  HostMover mover{kOutboxSlotBytes, 2};
  std::unique_ptr<Transport> transport;
  PeerNumber peer = 0;
  std::vector<ToPrefill> heard;
};

class OutboxWorld {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> OverTcp(const LandingShape& shape, TransportEvents& events) {
    return TcpTransport::Create({.landing = shape}, events);
  }
  /// `on_device`: the decode worker's KV. `pins`: that device can pin its slots.
  explicit OutboxWorld(bool on_device = true, bool pins = true, const TransportMaker& make = OverTcp) {
    mover.pins = pins;
    worker::WorkerConfig config;
    config.transport = "tcp", config.landing_slots = 4, config.landing_slot_bytes = kOutboxSlotBytes;
    landing =
        Landing::Create(config, worker::PoolOf(h.memory(), on_device ? &mover : nullptr), "d1", clock, loop, told, make)
            .value();
    lender = std::make_unique<Lender>(loop, LandingAddresses::Parse(landing->address()).value().addresses.at(0));
    const std::vector<int32_t> prompt = engine::RandomTokens(1, 33);
    EXPECT_TRUE(h.Add(engine::MakeRequest(1, prompt, 1)).ok());
    h.RunAll();
    from = h.cache().Match("", "", prompt, 32).kv;
    to = h.cache().Start("", "");
    EXPECT_TRUE(h.cache().Grow(to, 32));
  }
  void Until(const std::function<bool()>& enough) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!enough()) {
      loop.Turn();
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "took too long; told: " << told.log;
    }
  }
  /// `lends`: the hello names the outbox.
  void Greet(bool lends = true) {
    LaneHello hello{.incarnation = "p1", .side = side};
    if (lends) hello.outbox = lender->mover.outbox().card, hello.outbox_buffer_bytes = kOutboxSlotBytes;
    lender->Say(hello);
    Until([&] { return told.writer != 0; });
  }
  /// What a lane that is bound is told.
  bool ReadsOutbox() {
    landing->Send(told.writer, LaneBound{kLentLane, {{2, 1}}});
    Until([&] { return !lender->heard.empty(); });
    return std::get<LaneBound>(lender->heard.back()).reads_outbox;
  }
  /// A slot that names buffer `named`, of payloads in buffer 1.
  void Fill(uint32_t named = 1) {
    std::vector<std::byte> slot(kOutboxSlotBytes);
    const OutboxRoom room{.buffer = 1, .named = named};
    const std::vector<uint32_t> segments{0};
    const auto bytes = GatherSlot(*plan, plan->lanes()[0], kLentLane, 1, segments,
                                  worker::PoolOf(h.memory(), &lender->mover), worker::TablesOf(from), slot, &room);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    Write(std::span(slot).first(*bytes));
  }
  /// A slot with its payloads in it.
  void FillByHost() {
    std::vector<std::byte> slot(kOutboxSlotBytes);
    const std::vector<uint32_t> segments{0};
    const auto bytes = GatherSlot(*plan, plan->lanes()[0], kLentLane, 1, segments, worker::PoolOf(h.memory()),
                                  worker::TablesOf(from), slot);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    Write(std::span(slot).first(*bytes));
  }
  void Write(std::span<const std::byte> bytes) {
    int written = 0;
    lender->transport->Write(lender->peer, {kLentLane, {2, 1}}, bytes, [&](const absl::Status&) { ++written; });
    lender->Say(ToDecode(OpenLane{kLentLane, 0}));
    Until([&] { return written == 1 && told.lanes == 1; });
  }
  void Place() {
    told.log.clear();
    landing->Place({kLentLane, {2, 1}, {0}, plan, std::make_shared<const KvBlockTables>(worker::TablesOf(to))});
  }

  engine::SteppedEngine h{engine::SteppedEngineOptions{}};
  const KvSide side = worker::SideOf(h.memory().layout());
  const std::shared_ptr<const TransferPlan> plan =
      std::make_shared<const TransferPlan>(TransferPlan::Make(side, side, {0, 32}, 32).value());
  engine::SequenceKv from, to;
  SteadyClock clock;
  worker::HandLoop loop;
  OutboxTold told;
  HostMover mover{kOutboxSlotBytes, 2};
  std::unique_ptr<Landing> landing;
  std::unique_ptr<Lender> lender;
};

}  // namespace baton::decode_worker
