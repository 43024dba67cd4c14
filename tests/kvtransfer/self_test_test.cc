// The self-test of a connection over real transports, and who may have its slot.
#include "kvtransfer/self_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "kvtransfer/faulty_transport.h"
#include "kvtransfer/shm/shm_transport.h"
#include "kvtransfer/tcp/tcp_transport.h"

namespace baton {
namespace {

using Step = SelfTestMessage::Step;
using ::testing::HasSubstr;

constexpr uint32_t kSlot = 2;
constexpr uint64_t kSlotBytes = 1 << 18;

/// Self-test messages travel as their own bytes here.
std::string Bytes(const SelfTestMessage& message) {
  return std::string(1, static_cast<char>(message.step)) + "|" + std::to_string(message.slot.slot) + "|" +
         std::to_string(message.slot.turn) + "|" + std::to_string(message.bytes) + "|" + std::to_string(message.seed) +
         "|" + std::to_string(message.ok) + "|" + message.text;
}

SelfTestMessage Message(std::string_view bytes) {
  std::vector<std::string> parts(1);
  for (char c : bytes.substr(2)) {
    if (c == '|' && parts.size() < 6)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return {static_cast<Step>(bytes[0]),
          {static_cast<uint32_t>(std::stoul(parts[0])), static_cast<uint32_t>(std::stoul(parts[1]))},
          std::stoull(parts[2]),
          std::stoull(parts[3]),
          parts[4] == "1",
          0,
          parts[5]};
}

struct Receiver final : TransportEvents {
  void OnConnected(PeerNumber) override {}
  void OnMessage(PeerNumber peer, std::string_view bytes) override {
    if (!deaf) test->OnMessage(peer, Message(bytes), clock.Now() + ahead);
  }
  void OnLost(PeerNumber peer, const absl::Status&) override { test->OnLost(peer, clock.Now()); }
  bool MayLand(PeerNumber peer, const LandingPlace& place) override { return test->MayLand(peer, place.slot); }
  bool deaf = false;
  Duration ahead{};  ///< of the clock
  SteadyClock clock;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<SelfTestSlot> test;
};

struct Sender final : TransportEvents {
  void OnConnected(PeerNumber) override {}
  void OnMessage(PeerNumber, std::string_view bytes) override { test->OnMessage(Message(bytes)); }
  void OnLost(PeerNumber, const absl::Status&) override {}
  bool MayLand(PeerNumber, const LandingPlace&) override { return false; }
  std::unique_ptr<Transport> transport;
  std::shared_ptr<SelfTest> test;
  std::optional<absl::StatusOr<SelfTest::Result>> result;
};

class SelfTestOver : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Transport> Make(LandingShape shape, TransportEvents& events) {
    if (GetParam() == "shm") return ShmTransport::Create({.landing = shape}, events).value();
    return TcpTransport::Create({.landing = shape}, events).value();
  }
  void SetUp() override {
    receiver_.transport = Make({kSlot + 1, kSlotBytes}, receiver_);
    receiver_.test =
        std::make_unique<SelfTestSlot>(kSlot, receiver_.transport->landing().subspan(kSlot * kSlotBytes), "life 1",
                                       [this](PeerNumber peer, const SelfTestMessage& m) {
                                         receiver_.transport->Send(peer, Bytes(m), [](const absl::Status&) {});
                                       });
  }
  void Begin(Sender& sender, bool damaged, const Clock& clock) {
    sender.transport = Make({}, sender);
    if (damaged) sender.transport = std::make_unique<FaultyTransport>(std::move(sender.transport), 0, true, 7);
    const PeerNumber peer = sender.transport->Connect(receiver_.transport->address()).value();
    Transport* transport = sender.transport.get();
    sender.test = std::make_shared<SelfTest>(
        *transport, peer, clock,
        [transport](PeerNumber to, const SelfTestMessage& m) {
          transport->Send(to, Bytes(m), [](const absl::Status&) {});
        },
        [&sender](absl::StatusOr<SelfTest::Result> result) { sender.result = std::move(result); });
    sender.test->Start();
  }
  void Until(const std::function<bool()>& enough, std::initializer_list<Sender*> senders) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!enough()) {
      receiver_.transport->Progress();
      for (Sender* sender : senders) sender->transport->Progress();
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "took too long";
    }
  }
  Receiver receiver_;
  SteadyClock clock_;
};

TEST_P(SelfTestOver, AGoodConnectionPassesWithItsRate) {
  Sender sender;
  Begin(sender, false, clock_);
  Until([&] { return sender.result.has_value(); }, {&sender});
  ASSERT_TRUE(sender.result->ok()) << sender.result->status();
  EXPECT_GT((*sender.result)->gigabytes_per_second, 0.001);
  EXPECT_EQ((*sender.result)->receiver, "life 1");
  EXPECT_EQ((*sender.result)->path, GetParam());
  for (std::byte b : receiver_.transport->landing().first(kSlot * kSlotBytes))
    ASSERT_EQ(b, std::byte{0}) << "only the test's slot was written";
}

TEST_P(SelfTestOver, WrongBytesFailIt) {
  Sender sender;
  Begin(sender, true, clock_);
  Until([&] { return sender.result.has_value(); }, {&sender});
  EXPECT_EQ(sender.result->status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(sender.result->status().message()), HasSubstr("wrong bytes"));
}

TEST_P(SelfTestOver, ManyTakeTurns) {
  Sender senders[4];
  for (Sender& sender : senders) Begin(sender, false, clock_);
  Until([&] { return std::ranges::all_of(senders, [](const Sender& s) { return s.result.has_value(); }); },
        {&senders[0], &senders[1], &senders[2], &senders[3]});
  for (Sender& sender : senders) EXPECT_TRUE(sender.result->ok()) << sender.result->status();
}

TEST_P(SelfTestOver, ALostPeerHoldsNobodyUp) {
  Sender first, second;
  Begin(first, false, clock_);
  Until([&] { return receiver_.test->MayLand(1, {kSlot, 1}); }, {&first});
  first.test->Abandon();
  first.transport->Close(1, [] {});
  Begin(second, false, clock_);
  Until([&] { return second.result.has_value(); }, {&first, &second});
  EXPECT_TRUE(second.result->ok()) << second.result->status();
}

TEST_P(SelfTestOver, AStoppedHolderIsTestedAnewWhenItGoesOn) {
  Sender stopped, other;
  Begin(stopped, false, clock_);
  Until([&] { return receiver_.test->MayLand(1, {kSlot, 1}); }, {&stopped});
  receiver_.ahead = std::chrono::seconds(3);
  Begin(other, false, clock_);
  Until([&] { return other.result.has_value(); }, {&other});
  EXPECT_TRUE(other.result->ok()) << other.result->status();
  Until([&] { return stopped.result.has_value(); }, {&stopped, &other});
  EXPECT_TRUE(stopped.result->ok()) << stopped.result->status();
}

TEST_P(SelfTestOver, AStopOfOursIsNotTheirSilence) {
  Sender sender;
  FakeClock clock;
  Begin(sender, false, clock);
  clock.Advance(std::chrono::seconds(60));
  sender.test->Tick();
  EXPECT_FALSE(sender.result.has_value());
  Until([&] { return sender.result.has_value(); }, {&sender});
  EXPECT_TRUE(sender.result->ok()) << sender.result->status();
}

TEST_P(SelfTestOver, SilenceFailsItInTime) {
  receiver_.deaf = true;
  Sender sender;
  FakeClock clock;
  Begin(sender, false, clock);
  for (int i = 0; i < 60 && !sender.result; ++i) {
    clock.Advance(std::chrono::milliseconds(100));
    sender.test->Tick();
  }
  ASSERT_TRUE(sender.result.has_value());
  EXPECT_EQ(sender.result->status().code(), absl::StatusCode::kDeadlineExceeded);
}

INSTANTIATE_TEST_SUITE_P(Transports, SelfTestOver, ::testing::Values("tcp", "shm"),
                         [](const auto& info) { return info.param; });

// ---- the slot's own rules

struct Slot {
  std::vector<std::byte> memory = std::vector<std::byte>(4096);
  std::vector<std::pair<PeerNumber, SelfTestMessage>> sent;
  TimePoint now{std::chrono::seconds(1)};
  SelfTestSlot slot{kSlot, memory, "life",
                    [this](PeerNumber peer, const SelfTestMessage& m) { sent.emplace_back(peer, m); }};
};

TEST(SelfTestSlot, AGrantIsOneWritersAndOneTurns) {
  Slot s;
  s.slot.OnMessage(1, {.step = Step::kAsk}, s.now);
  s.slot.OnMessage(2, {.step = Step::kAsk}, s.now);
  ASSERT_EQ(s.sent.size(), 1u);
  const SlotTurn granted = s.sent[0].second.slot;
  EXPECT_TRUE(s.slot.MayLand(1, granted));
  EXPECT_FALSE(s.slot.MayLand(2, granted));
  FillTestPattern(5, s.memory);
  s.slot.OnMessage(1, {.step = Step::kFull, .slot = granted, .bytes = 4096, .seed = 5}, s.now);
  EXPECT_TRUE(s.sent.back().second.ok);
  EXPECT_FALSE(s.slot.MayLand(1, granted)) << "that turn is over";
  const size_t said = s.sent.size();
  s.slot.OnMessage(1, {.step = Step::kFull, .slot = granted, .bytes = 4096, .seed = 5}, s.now);
  EXPECT_EQ(s.sent.size(), said) << "a message of it that comes twice is not answered twice";
  s.slot.OnMessage(1, {.step = Step::kOver, .ok = true}, s.now);
  EXPECT_EQ(s.sent.back().first, 2u);
  EXPECT_EQ(s.sent.back().second.step, Step::kGrant);
}

TEST(SelfTestSlot, AStalledHolderLosesItToWhoAsksAgain) {
  Slot s;
  s.slot.OnMessage(1, {.step = Step::kAsk}, s.now);
  s.slot.OnMessage(2, {.step = Step::kAsk}, s.now + std::chrono::seconds(1));
  EXPECT_EQ(s.sent.size(), 1u);
  s.slot.OnMessage(2, {.step = Step::kAsk}, s.now + std::chrono::seconds(3));
  EXPECT_EQ(s.sent.back().first, 2u);
  const size_t said = s.sent.size();
  s.slot.OnMessage(1, {.step = Step::kFull, .slot = s.sent[0].second.slot, .bytes = 8, .seed = 1}, s.now);
  EXPECT_EQ(s.sent.size(), said) << "the first one waits for its turn";
  s.slot.OnMessage(2, {.step = Step::kOver, .ok = true}, s.now);
  EXPECT_EQ(s.sent.back().first, 1u);
  EXPECT_EQ(s.sent.back().second.step, Step::kGrant);
}

TEST(SelfTestSlot, HundredsThatAskOnceAndFallSilentKeepNobodyOutForLong) {
  constexpr PeerNumber kHonest = 1000;
  Slot s;
  for (PeerNumber stranger = 1; stranger <= 500; ++stranger) s.slot.OnMessage(stranger, {.step = Step::kAsk}, s.now);
  const TimePoint came = s.now;
  while (s.sent.back().first != kHonest && s.now < came + std::chrono::minutes(1)) {
    s.slot.OnMessage(kHonest, {.step = Step::kAsk}, s.now);  // as SelfTest does
    s.now += std::chrono::milliseconds(500);
  }
  EXPECT_LE(s.now - came, std::chrono::seconds(3)) << "it gives up when it hears nothing for 5 s";
}

TEST(SelfTestSlot, WhoTestsWithoutEndKeepsNobodyOutForLong) {
  constexpr PeerNumber kEndless = 1, kHonest = 2;
  Slot s;
  s.slot.OnMessage(kEndless, {.step = Step::kAsk}, s.now);
  const TimePoint came = s.now;
  while (s.sent.back().first != kHonest && s.now < came + std::chrono::minutes(1)) {
    s.now += std::chrono::milliseconds(500);
    s.slot.OnMessage(kEndless, {.step = Step::kFull, .slot = s.sent.back().second.slot, .bytes = 8}, s.now);
    s.slot.OnMessage(kHonest, {.step = Step::kAsk}, s.now);  // as SelfTest does
  }
  EXPECT_LT(s.now - came, std::chrono::seconds(5)) << "it gives up when it hears nothing for so long";
  s.slot.OnMessage(kEndless, {.step = Step::kFull, .slot = s.sent[0].second.slot, .bytes = 8}, s.now);
  s.slot.OnMessage(kHonest, {.step = Step::kOver, .ok = true}, s.now);
  EXPECT_EQ(s.sent.back().first, kEndless) << "slow, perhaps: it is tested anew";
}

TEST(SelfTestSlot, MoreBytesThanTheSlotHasAreNotRight) {
  Slot s;
  s.slot.OnMessage(1, {.step = Step::kAsk}, s.now);
  s.slot.OnMessage(1, {.step = Step::kFull, .slot = s.sent[0].second.slot, .bytes = 1 << 20, .seed = 5}, s.now);
  EXPECT_FALSE(s.sent.back().second.ok);
}

}  // namespace
}  // namespace baton
