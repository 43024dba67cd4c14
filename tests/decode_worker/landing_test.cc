// The transfer thread's half of the decode side over a real TCP transport: who may write which slot in which of its
// states, and what becomes of messages.
#include "decode_worker/landing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "decode_worker/ticket_codec.h"
#include "kvtransfer/layout_codec.h"
#include "kvtransfer/tcp/tcp_transport.h"
#include "sim/stepped_engine.h"
#include "tests/caught_log.h"
#include "tests/hex.h"
#include "tests/relay_golden.h"
#include "tests/state_table.h"
#include "tests/worker/hand_loop.h"
#include "tests/worker/one_rank.h"

namespace baton::decode_worker {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kSlotBytes = 4096;

/// What the desk would be told.
class Told final : public LandingEvents {
 public:
  void OnHello(WriterId w, LaneHello hello) override { writer = w, log += "Hello(" + hello.incarnation + ") "; }
  void OnLane(WriterId, ToDecode message) override { log += std::visit(*this, message) + " "; }
  void OnScattered(const decode::Scattered& placed) override {
    log += placed.digest_ok ? "Scattered " : "Bad ";
    if (placed.told) log += "Told ";
  }
  void OnWriterLost(WriterId) override { log += "Lost "; }
  void OnWriterFenced(WriterId) override { log += "Fenced "; }
  std::string operator()(const OpenLane&) const { return "Open"; }
  std::string operator()(const SlotFull&) const { return "Full"; }
  std::string operator()(const LaneDone&) const { return "Done"; }
  std::string operator()(const LaneClosed&) const { return "Closed"; }
  std::string log;
  WriterId writer = 0;
};

/// A prefill worker's end.
class Writer final : public TransportEvents {
 public:
  Writer(worker::HandLoop& loop, const std::string& address) {
    transport_ = TcpTransport::Create({}, *this).value();
    loop.Watch(transport_.get());
    peer_ = transport_->Connect(address).value();
  }
  void OnConnected(PeerNumber) override {}
  void OnMessage(PeerNumber, std::string_view bytes) override {
    const auto message = DecodeLaneMessage(bytes);
    if (message.ok() && std::holds_alternative<SelfTestMessage>(*message)) return void(++tests);
    ASSERT_TRUE(message.ok() && std::holds_alternative<ToPrefill>(*message));
    heard.push_back(std::get<ToPrefill>(*message));
  }
  void OnLost(PeerNumber, const absl::Status&) override { lost = true; }
  bool MayLand(PeerNumber, const LandingPlace&) override { return false; }

  void Say(const LaneMessage& message) { SayBytes(EncodeLaneMessage(message)); }
  void SayBytes(std::string bytes) {
    transport_->Send(peer_, std::move(bytes), [](const absl::Status&) {});
  }
  /// Writes `byte` all over the slot.
  void Write(const LandingPlace& place, std::byte byte) {
    WriteBytes(place, std::make_shared<std::vector<std::byte>>(kSlotBytes, byte));
  }
  void WriteBytes(const LandingPlace& place, std::shared_ptr<std::vector<std::byte>> bytes) {
    transport_->Write(peer_, place, *bytes, [this, bytes](const absl::Status&) { ++written; });
  }
  void HangUp() {
    transport_->Close(peer_, [] {});
  }

  std::vector<ToPrefill> heard;
  bool lost = false;
  int written = 0, tests = 0;

 private:
  std::unique_ptr<Transport> transport_;
  PeerNumber peer_ = 0;
};

class World {
 public:
  World() {
    worker::WorkerConfig config;
    config.transport = "tcp", config.landing_slots = 4, config.landing_slot_bytes = kSlotBytes;
    const auto make = [](const LandingShape& shape,
                         TransportEvents& events) -> absl::StatusOr<std::unique_ptr<Transport>> {
      return TcpTransport::Create({.landing = shape}, events);
    };
    landing = Landing::Create(config, worker::PoolOf(h.memory()), "d1", clock, loop, told, make).value();
    mine = Dial("mine"), other = Dial("other");
  }
  std::unique_ptr<Writer> Dial(const std::string& life) {
    auto writer = std::make_unique<Writer>(loop, LandingAddresses::Parse(landing->address()).value().addresses.at(0));
    writer->Say(LaneHello{
        .incarnation = life, .model_digest = "m", .numerics_id = "n", .side = worker::SideOf(h.memory().layout())});
    told.writer = 0;
    Until([&] { return told.writer != 0; });
    (life == "mine" ? my_id : other_id) = told.writer;
    return writer;
  }
  void Until(const std::function<bool()>& enough) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!enough()) {
      loop.Turn();
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "took too long; told: " << told.log;
    }
  }
  /// Everything that `writer` has said so far was heard.
  void Settle(Writer& writer) {
    told.log.clear();
    writer.Say(ToDecode(OpenLane{{1, 99, 0}, 0}));
    Until([&] { return told.log.find("Open") != std::string::npos; });
  }
  std::byte ByteOf(uint32_t slot) { return landing->SlotsOf(my_id)[slot * kSlotBytes + kSlotBytes - 1]; }

  engine::SteppedEngine h{engine::SteppedEngineOptions{}};
  SteadyClock clock;
  worker::HandLoop loop;
  Told told;
  std::unique_ptr<Landing> landing;
  std::unique_ptr<Writer> mine, other;
  WriterId my_id = 0, other_id = 0;
};

const LaneKey kLane{9, 1, 0};

// ---- who may write, as a table

constexpr std::array kStates = {"not granted", "granted", "filled", "granted again", "granted to another"};

void Enter(World& w, const std::string& state) {
  if (state == "not granted") return;
  w.landing->Send(w.my_id, LaneBound{kLane, {{2, 1}}});
  if (state == "granted") return;
  w.mine->Say(ToDecode(SlotFull{kLane, {2, 1}, {0}}));
  w.Settle(*w.mine);
  if (state == "granted again") w.landing->Send(w.my_id, SlotFree{kLane, {2, 2}, true});
  if (state == "granted to another") w.landing->Send(w.other_id, LaneBound{{10, 1, 0}, {{2, 2}}});
}

using Apply = std::function<void(World&)>;

const std::vector<std::pair<std::string, Apply>>& Writes() {
  static const std::vector<std::pair<std::string, Apply>> writes = {
      {"mine, turn 1", [](World& w) { w.mine->Write({kLane, {2, 1}}, std::byte{1}); }},
      {"mine, turn 2", [](World& w) { w.mine->Write({kLane, {2, 2}}, std::byte{1}); }},
      {"mine, other epoch", [](World& w) { w.mine->Write({{9, 2, 0}, {2, 1}}, std::byte{1}); }},
      {"mine, other lane", [](World& w) { w.mine->Write({{9, 1, 1}, {2, 1}}, std::byte{1}); }},
      {"mine, said again",
       [](World& w) {
         w.landing->Send(w.my_id, LaneBound{kLane, {{2, 1}}});  // the answer to a repeated Open
         w.mine->Write({kLane, {2, 1}}, std::byte{1});
       }},
      {"another's, same words", [](World& w) { w.other->Write({kLane, {2, 1}}, std::byte{1}); }},
      {"another's own", [](World& w) { w.other->Write({{10, 1, 0}, {2, 2}}, std::byte{1}); }},
  };
  return writes;
}

// who | one cell per state of the slot
constexpr const char* kTable = R"(
mine, turn 1          | kept out | lands | kept out | kept out | kept out
mine, turn 2          | kept out | kept out | kept out | lands | kept out
mine, other epoch     | kept out | kept out | kept out | kept out | kept out
mine, other lane      | kept out | kept out | kept out | kept out | kept out
mine, said again      | lands | lands | kept out | lands | lands
another's, same words | kept out | kept out | kept out | kept out | kept out
another's own         | kept out | kept out | kept out | kept out | lands
)";

TEST(LandingTable, ASlotIsStoredOnlyInItsOwnTurn) {
  ExpectEveryCell(kTable, kStates, Writes(), [](const auto&, const std::string& state, const Apply& apply) {
    World w;
    Enter(w, state);
    apply(w);
    w.Settle(*w.mine), w.Settle(*w.other);
    return std::string(w.ByteOf(2) == std::byte{1} ? "lands" : "kept out");
  });
}

// ---- self-tests, and the end of a writer

TEST(Landing, AWriterThatIsLostLeavesItsSelfTestToTheNextAndIsCounted) {
  World w;
  w.mine->Say(SelfTestMessage{});
  w.Until([&] { return w.mine->tests == 1; });
  w.other->Say(SelfTestMessage{});
  w.Settle(*w.other);
  EXPECT_EQ(w.other->tests, 0) << "one at a time";
  EXPECT_EQ(w.landing->counters().writers_lost, 0);
  w.mine->HangUp();
  w.Until([&] { return w.told.log.find("Fenced") != std::string::npos; });
  EXPECT_EQ(w.landing->counters().writers_lost, 1);
  w.other->Say(SelfTestMessage{});
  w.Settle(*w.other);
  w.Until([&] { return w.other->tests > 0; });
}

TEST(Landing, WhereNoTransportOpensTheFirstReasonIsTheAnswer) {
  engine::SteppedEngine h{engine::SteppedEngineOptions{}};
  SteadyClock clock;
  worker::HandLoop loop;
  Told told;
  worker::WorkerConfig config;
  config.transport = "shm";
  int opened = 0;
  const auto make = [&](const LandingShape&, TransportEvents&) -> absl::StatusOr<std::unique_ptr<Transport>> {
    return absl::UnavailableError(StrCat("reason ", ++opened));
  };
  const auto landing = Landing::Create(config, worker::PoolOf(h.memory()), "d1", clock, loop, told, make);
  EXPECT_EQ(landing.status(), absl::UnavailableError("reason 1"));
}

TEST(Landing, ASelfTestThatFailedIsCountedWhereItsWriterHasTheSlot) {
  World w;
  const CaughtLog log;
  w.mine->Say(SelfTestMessage{});
  w.Until([&] { return w.mine->tests == 1; });
  w.other->Say(SelfTestMessage{.step = SelfTestMessage::Step::kOver});
  w.Settle(*w.other);
  EXPECT_EQ(w.landing->counters().self_tests_failed, 0);
  w.mine->Say(SelfTestMessage{.step = SelfTestMessage::Step::kOver});
  w.Settle(*w.mine);
  EXPECT_EQ(w.landing->counters().self_tests_failed, 1);
  EXPECT_EQ(log.Count("a prefill worker's self-test by"), 1);
  w.mine->Say(SelfTestMessage{.step = SelfTestMessage::Step::kFull});
  w.Settle(*w.mine);
  EXPECT_EQ(w.landing->counters().self_tests_failed, 1);
}

// ---- messages

TEST(Landing, LaneMessagesReachTheDeskInOrderAndAnswersTheWriter) {
  World w;
  w.told.log.clear();
  w.mine->Say(ToDecode(OpenLane{kLane, 5})), w.mine->Say(ToDecode(SlotFull{kLane, {3, 1}, {0}}));
  w.mine->Say(ToDecode(LaneDone{kLane, 1})), w.mine->Say(ToDecode(LaneClosed{kLane, true}));
  w.Until([&] { return w.told.log == "Open Full Done Closed "; });
  for (const ToPrefill& answer :
       std::vector<ToPrefill>{LaneBound{kLane, {{0, 1}}}, LaneVerified{kLane}, LaneClosedAck{kLane}})
    w.landing->Send(w.my_id, answer);
  w.Until([&] { return w.mine->heard.size() == 3; });
  EXPECT_TRUE(std::holds_alternative<LaneVerified>(w.mine->heard[1]));
  EXPECT_TRUE(w.other->heard.empty());
}

TEST(Landing, ASlotNumberBeyondTheRingIsTheDesksBusiness) {
  World w;
  w.told.log.clear();
  w.mine->Say(ToDecode(SlotFull{kLane, {1u << 30, 1}, {0}}));
  w.Until([&] { return w.told.log == "Full "; });
}

TEST(Landing, AWriterThatTalksNonsenseIsCutOffAndNoOther) {
  for (const std::string& nonsense :
       {std::string("\xff\xff\xff"), EncodeLaneMessage(ToPrefill(LaneBusy{kLane})), std::string()}) {
    World w;
    w.told.log.clear();
    w.mine->SayBytes(nonsense);
    w.Until([&] { return w.mine->lost; });
    EXPECT_EQ(w.told.log, "Lost Fenced ");
    w.Settle(*w.other);
  }
}

// Whoever has the secret may come without end.
TEST(Landing, WritersThatTalkNonsenseOneAfterTheOtherHaveSixteenLinesASecond) {
  World w;
  const CaughtLog log;
  const TimePoint begin = w.clock.Now();
  std::vector<std::unique_ptr<Writer>> writers;  // the loop goes on with them
  for (int i = 0; i < 100; ++i) {
    Writer& writer = *writers.emplace_back(w.Dial("mine"));
    writer.SayBytes("\xff");
    w.Until([&] { return writer.lost; });
  }
  const int seconds = 1 + static_cast<int>(Seconds(w.clock.Now() - begin));
  EXPECT_GE(log.Count("is cut off"), 1);
  EXPECT_LE(log.Count("is cut off"), 16 * seconds) << log.text();
}

TEST(Landing, AWriterThatHangsUpIsLostAndThenFenced) {
  World w;
  w.told.log.clear();
  w.mine->HangUp();
  w.Until([&] { return w.told.log == "Lost Fenced "; });
  w.landing->Send(w.my_id, LaneBusy{kLane});  // to nobody
  w.Settle(*w.other);
}

TEST(Landing, AStrangerIsCountedAndTheDeskHearsNothingOfHim) {
  World w;
  w.told.log.clear();
  const std::string address = LandingAddresses::Parse(w.landing->address()).value().addresses.at(0);
  const int stranger = tcp::Dial(std::string(address.substr(address.find(':') + 1))).value();
  const std::string noise(100, 'x');
  w.Until([&] { return send(stranger, noise.data(), noise.size(), MSG_NOSIGNAL) > 0; });
  w.Until([&] { return w.landing->counters().writers_refused == 1; });
  w.Settle(*w.mine);
  EXPECT_EQ(w.told.log, "Open ");
  EXPECT_EQ(w.landing->counters().writers_lost, 0);
  close(stranger);
}

TEST(Landing, ACutWriterIsFencedAndHearsOfIt) {
  World w;
  w.told.log.clear();
  w.landing->Cut(w.my_id);
  EXPECT_EQ(w.told.log, "Fenced ");
  w.Until([&] { return w.mine->lost; });
  w.landing->Cut(w.my_id);  // again: still answered
  EXPECT_EQ(w.told.log, "Fenced Fenced ");
}

// ---- placing

TEST(Landing, ASlotIsPlacedWithItsDigestsOrCalledBad) {
  World w;
  const KvSide side = worker::SideOf(w.h.memory().layout());
  const auto plan = std::make_shared<const TransferPlan>(TransferPlan::Make(side, side, {0, 32}, 32).value());
  const std::vector<int32_t> prompt = engine::RandomTokens(1, 33);
  ASSERT_TRUE(w.h.Add(engine::MakeRequest(1, prompt, 1)).ok());
  w.h.RunAll();
  const engine::SequenceKv from = w.h.cache().Match("", "", prompt, 32).kv;
  engine::SequenceKv to = w.h.cache().Start("", "");
  ASSERT_TRUE(w.h.cache().Grow(to, 32));
  const KvPoolView pool = worker::PoolOf(w.h.memory());
  const LanePlan& lane = plan->lanes()[0];
  std::vector<std::byte> slot(kSlotBytes);
  const std::vector<uint32_t> segments{0};
  const auto bytes = GatherSlot(*plan, lane, kLane, 1, segments, pool, worker::TablesOf(from), slot);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const auto place = [&](uint32_t turn, bool damage, bool tell = false) {
    w.landing->Send(w.my_id, LaneBound{kLane, {{2, turn}}});
    auto sent = std::make_shared<std::vector<std::byte>>(slot.begin(), slot.begin() + static_cast<ptrdiff_t>(*bytes));
    if (damage) (*sent)[*bytes - 1] ^= std::byte{1};
    w.mine->WriteBytes({kLane, {2, turn}}, sent);
    w.Settle(*w.mine);
    w.told.log.clear();
    w.mine->heard.clear();
    w.landing->Place({kLane, {2, turn}, {0}, plan, std::make_shared<const KvBlockTables>(worker::TablesOf(to)), tell});
    return w.told.log;
  };
  EXPECT_EQ(place(1, false), "Scattered ");
  EXPECT_EQ(place(2, false), "Bad ") << "the slot says that it was filled for turn 1";
  EXPECT_EQ(place(1, true), "Bad ");
  EXPECT_EQ(w.landing->counters().digest_mismatches, 1);
  EXPECT_EQ(w.landing->counters().unreadable_slots, 1);
  EXPECT_EQ(w.landing->counters().slots, 3);
  EXPECT_GT(w.landing->Figures().nanoseconds, 0);

  EXPECT_EQ(place(1, false, /*tell=*/true), "Scattered Told ");
  w.Until([&] { return !w.mine->heard.empty(); });
  EXPECT_EQ(std::get<SlotFree>(w.mine->heard.at(0)).grant, (SlotTurn{2, 2}));
  w.mine->Write({kLane, {2, 2}}, std::byte{7});
  w.Settle(*w.mine);
  EXPECT_EQ(w.ByteOf(2), std::byte{7}) << "it was granted anew";
  EXPECT_EQ(place(1, true, /*tell=*/true), "Bad ") << "what is to be sent again is the desk's to say";
  w.Settle(*w.mine);
  EXPECT_TRUE(
      std::ranges::none_of(w.mine->heard, [](const ToPrefill& m) { return std::holds_alternative<SlotFree>(m); }));
}

TEST(TicketCodec, BytesThatAreNoWholeTokenAreRefusedWithTheirNumber) {
  v1::ReserveRequest request;
  request.mutable_key()->set_request_id("r");
  request.set_prompt_len(3);
  for (const size_t bytes : {13u, 14u, 15u}) {
    request.set_prompt_token_ids(std::string(bytes, '\1'));
    EXPECT_EQ(DecodeReserve(request).status().message(),
              "prompt_token_ids has " + std::to_string(bytes) + " bytes, not a multiple of 4");
  }
  request.set_prompt_token_ids(std::string(12, '\1'));
  EXPECT_EQ(DecodeReserve(request)->prompt.size(), 3u);
}

// ---- what a router is told of it, byte for byte

TEST(RelayGolden, AReserveRequestAndItsAnswer) {
  v1::ReserveRequest request;
  ASSERT_TRUE(request.ParseFromString(Unhex(golden::kReserve)));
  const decode::ReserveOrder order = DecodeReserve(request).value();
  EXPECT_EQ(order.key, (decode::TicketKey{"r", 3}));
  EXPECT_EQ(order.salt, "tenant");
  EXPECT_THAT(order.prompt, ElementsAre(5, 6, 1 << 20));
  EXPECT_EQ(order.prompt_len, 3);
  EXPECT_EQ(order.expiry, std::chrono::milliseconds(2500));
  EXPECT_EQ(order.lease, std::chrono::milliseconds(4000));

  v1::ReserveReply golden;
  ASSERT_TRUE(golden.ParseFromString(Unhex(golden::kReserved)));
  DeskFacts facts{.piece_tokens = 64, .incarnation = "incarnation"};
  facts.side = {.layout = DecodeLayout(golden.kv_layout()).value(), .tensor_parallel_size = 2, .stage_layers = {0, 3}};
  World w;
  v1::ReserveReply reply =
      EncodeReserved({{"r", 3}, absl::OkStatus(), 0x1234567890abcdef, {3, 4}, 16, std::chrono::milliseconds(2500)},
                     facts, w.landing->ways(), {});
  EXPECT_EQ(Hex(reply.ticket()), golden::kTicket);
  EXPECT_EQ(reply.landing_address(), w.landing->address());
  EXPECT_EQ(reply.slot_bytes(), w.landing->shape().slot_bytes);
  reply.set_landing_address("here");
  reply.set_transport("tcp");
  reply.set_slot_bytes(1 << 20);
  EXPECT_EQ(Hex(reply.SerializeAsString()), golden::kReserved);
}

TEST(Landing, AnEndOfATestThatNobodyBeganIsNone) {
  World w;
  const int64_t failed = w.landing->Figures().self_tests_failed;
  for (int i = 0; i < 100; ++i) w.mine->Say(SelfTestMessage{.step = SelfTestMessage::Step::kOver});
  w.mine->Say(ToDecode(LaneDone{kLane, 1}));  // behind them
  w.told.log.clear();
  w.Until([&] { return w.told.log.find("Done") != std::string::npos; });
  EXPECT_EQ(w.landing->Figures().self_tests_failed, failed);
}

}  // namespace
}  // namespace baton::decode_worker
