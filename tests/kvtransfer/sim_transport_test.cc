// That the simulated transport really is as unkind as it says: what no test would notice if it were kind.
#include "kvtransfer/sim/sim_transport.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace baton {
namespace {

struct Side final : TransportEvents {
  void OnConnected(PeerNumber peer) override { connected = peer; }
  void OnMessage(PeerNumber, std::string_view) override { ++messages; }
  void OnLost(PeerNumber, const absl::Status&) override { ++lost; }
  bool MayLand(PeerNumber, const LandingPlace&) override { return ++asked, true; }
  PeerNumber connected = 0;
  int messages = 0, lost = 0, asked = 0;
};

constexpr uint64_t kSlotBytes = 1 << 20;

class Pair {
 public:
  Pair(uint64_t seed, FenceKind fence)
      : network(std::make_shared<SimNetwork>(seed)),
        receiver(std::make_unique<SimTransport>(network, fence, LandingShape{4, kSlotBytes}, receiver_side)),
        sender(std::make_unique<SimTransport>(network, fence, LandingShape{}, sender_side)) {
    peer = sender->Connect(receiver->address()).value();
    while (receiver_side.connected == 0 || sender->landing_of(peer).slots == 0) Turn();
  }
  void Turn(int turns = 1) {
    for (int i = 0; i < turns; ++i) {
      if (sender) sender->Progress();
      if (receiver) receiver->Progress();
    }
  }
  void WriteAll(const std::vector<std::byte>& bytes) {
    for (uint32_t i = 0; i < 4; ++i)
      sender->Write(peer, {{9, 1, 0}, {i, 1}}, bytes, [this](const absl::Status& s) { ++(s.ok() ? written : failed); });
  }
  std::shared_ptr<SimNetwork> network;
  Side receiver_side, sender_side;
  std::unique_ptr<SimTransport> receiver, sender;
  PeerNumber peer = 0;
  int written = 0, failed = 0;
};

const std::vector<std::byte> kOnes(kSlotBytes, std::byte{1});

TEST(SimTransport, MessagesOvertakeWritesAndSlotsLandTwice) {
  int overtakes = 0, duplicates = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Pair p(seed, FenceKind::kForcedClose);
    p.WriteAll(kOnes);
    p.sender->Send(p.peer, "hurry", nullptr);
    p.Turn(2000);
    EXPECT_EQ(p.written, 4) << seed;
    overtakes += p.network->counters().overtakes, duplicates += p.network->counters().duplicates;
  }
  EXPECT_GT(overtakes, 5);
  EXPECT_GT(duplicates, 5);
}

TEST(SimTransport, AfterACloseBytesLandLateAndTornUntilTheReceiverFences) {
  int late = 0, torn = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Pair p(seed, FenceKind::kForcedClose);
    p.WriteAll(kOnes);
    p.Turn(3);
    bool inside = false;
    int before = p.failed;
    p.sender->Close(p.peer, [] {});
    inside = p.failed > before;
    EXPECT_TRUE(inside) << "Dones come from inside Close";
    p.Turn(2000);
    EXPECT_EQ(p.written + p.failed, 4);
    EXPECT_EQ(p.receiver_side.lost, 1);
    late += p.network->counters().late_landings, torn += p.network->counters().torn_landings;
  }
  EXPECT_GT(late, 10);
  EXPECT_GT(torn, 5);
}

TEST(SimTransport, OnSharedMemoryALostWriterWritesUntilItsProcessExits) {
  int late = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Pair p(seed, FenceKind::kPeerExit);
    const auto landed = [&p] {
      return std::ranges::any_of(p.receiver->landing(), [](std::byte b) { return b != std::byte{0}; });
    };
    p.WriteAll(kOnes);
    p.Turn(3);
    p.sender->Close(p.peer, [] {});
    while (p.receiver_side.lost == 0) p.Turn();
    int fenced = 0;
    for (int i = 0; i < 2; ++i) p.receiver->Close(p.receiver_side.connected, [&fenced] { ++fenced; });
    std::memset(p.receiver->landing().data(), 0, p.receiver->landing().size());
    p.Turn(seed % 2 == 0 ? 2000 : 5);
    EXPECT_EQ(fenced, 0) << "it lives";
    late += landed();
    p.sender.reset();
    p.Turn(2);
    EXPECT_EQ(fenced, 2);
    std::memset(p.receiver->landing().data(), 0, p.receiver->landing().size());
    p.Turn(2000);
    EXPECT_FALSE(landed()) << seed;
  }
  EXPECT_GT(late, 10);
}

TEST(SimTransport, AFenceHoldsAgainstWhatIsStillOnItsWay) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Pair p(seed, FenceKind::kForcedClose);
    p.WriteAll(kOnes);
    p.Turn(3);
    p.sender.reset();
    p.Turn(2);
    p.receiver->Close(p.receiver_side.connected, [] {});
    std::memset(p.receiver->landing().data(), 0, p.receiver->landing().size());
    p.Turn(2000);
    for (std::byte b : p.receiver->landing()) ASSERT_EQ(b, std::byte{0}) << seed;
  }
}

TEST(SimTransport, WhereTheReceiverWritesItIsAskedBeforeEveryPiece) {
  Pair p(1, FenceKind::kReceiverWrites);
  p.WriteAll(kOnes);
  p.Turn(2000);
  EXPECT_GE(p.receiver_side.asked, 4 * 16);
}

}  // namespace
}  // namespace baton
