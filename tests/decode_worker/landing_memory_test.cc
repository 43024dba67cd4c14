// Landing memories that are replaced because a frozen writer may still write them: over the real shared-memory and TCP
// transports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>

#include "decode_worker/landing.h"
#include "kvtransfer/shm/shm_transport.h"
#include "sim/stepped_engine.h"
#include "tests/worker/hand_loop.h"
#include "tests/worker/one_rank.h"

namespace baton::decode_worker {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kMemorySlotBytes = 65536;
const LaneKey kMemoryLane{9, 1, 0};

class MemoryTold final : public LandingEvents {
 public:
  void OnHello(WriterId w, LaneHello) override { writer = w; }
  void OnLane(WriterId, ToDecode) override { ++lanes; }
  void OnScattered(const decode::Scattered&) override {}
  void OnWriterLost(WriterId) override { ++lost; }
  void OnWriterFenced(WriterId) override { ++fenced; }
  WriterId writer = 0;
  int lanes = 0, lost = 0, fenced = 0;
};

/// A prefill worker's end, on shared memory.
class MemoryWriter final : public TransportEvents {
 public:
  MemoryWriter(worker::HandLoop& loop, const std::string& address) : loop_(loop) {
    transport_ = ShmTransport::Create({}, *this).value();
    loop.Watch(transport_.get());
    peer_ = transport_->Connect(address).value();
  }
  ~MemoryWriter() override { loop_.Unwatch(transport_.get()); }
  void OnConnected(PeerNumber) override {}
  void OnMessage(PeerNumber, std::string_view) override {}
  void OnLost(PeerNumber, const absl::Status&) override { lost = true; }
  bool MayLand(PeerNumber, const LandingPlace&) override { return false; }
  void Say(const LaneMessage& message) {
    transport_->Send(peer_, EncodeLaneMessage(message), [](const absl::Status&) {});
  }
  /// As a process does that mapped the memory once, whatever has been agreed since.
  void Scribble(uint32_t slot, std::byte byte) {
    const std::span<std::byte> there = transport_->slot_of(peer_, slot);
    ASSERT_FALSE(there.empty());
    std::memset(there.data(), static_cast<int>(byte), there.size());
  }
  bool lost = false;

 private:
  worker::HandLoop& loop_;
  std::unique_ptr<Transport> transport_;
  PeerNumber peer_ = 0;
};

class MemoryWorld {
 public:
  MemoryWorld() {
    worker::WorkerConfig config;
    config.transport = "shm", config.landing_slots = 4, config.landing_slot_bytes = kMemorySlotBytes;
    landing = Landing::Create(config, worker::PoolOf(h.memory()), "d1", clock, loop, told).value();
  }
  std::vector<std::string> Addresses() const { return LandingAddresses::Parse(landing->address()).value().addresses; }
  std::vector<std::string> Kinds() const {
    std::vector<std::string> kinds;
    for (const std::string& address : Addresses()) kinds.push_back(KindOf(address));
    return kinds;
  }
  std::unique_ptr<MemoryWriter> Dial(WriterId& id) {
    auto writer = std::make_unique<MemoryWriter>(loop, Addresses().at(0));
    writer->Say(LaneHello{.incarnation = "p", .side = worker::SideOf(h.memory().layout())});
    told.writer = 0;
    Until([&] { return told.writer != 0; });
    id = told.writer;
    return writer;
  }
  void Until(const std::function<bool()>& enough) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!enough()) {
      loop.Turn();
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "took too long";
    }
  }
  std::byte ByteOf(WriterId writer, uint32_t slot) const { return landing->SlotsOf(writer)[slot * kMemorySlotBytes]; }

  engine::SteppedEngine h{engine::SteppedEngineOptions{}};
  SteadyClock clock;
  worker::HandLoop loop;
  MemoryTold told;
  std::unique_ptr<Landing> landing;
};

TEST(LandingMemory, AReplacedOneIsWrittenByNobodyNew) {
  MemoryWorld w;
  EXPECT_THAT(w.Kinds(), ElementsAre("shm", "tcp"));
  const std::string before = w.Addresses().at(0);
  WriterId frozen_id = 0, healthy_id = 0;
  const auto frozen = w.Dial(frozen_id);
  w.landing->Replace(w.landing->MemoryOf(frozen_id));
  EXPECT_THAT(w.Kinds(), ElementsAre("shm", "tcp"));
  EXPECT_NE(w.Addresses().at(0), before);
  const auto healthy = w.Dial(healthy_id);
  EXPECT_NE(w.landing->MemoryOf(healthy_id), w.landing->MemoryOf(frozen_id));
  healthy->Scribble(2, std::byte{1});
  frozen->Scribble(2, std::byte{7});
  EXPECT_EQ(w.ByteOf(healthy_id, 2), std::byte{1}) << "the same slot, and memory of its own";
  EXPECT_EQ(w.ByteOf(frozen_id, 2), std::byte{7});
}

TEST(LandingMemory, ConnectionsToAReplacedOneGoOn) {
  MemoryWorld w;
  WriterId id = 0;
  const auto writer = w.Dial(id);
  w.landing->Replace(w.landing->MemoryOf(id));
  writer->Say(ToDecode(LaneDone{kMemoryLane, 1}));
  w.Until([&] { return w.told.lanes == 1; });
  EXPECT_FALSE(writer->lost);
}

TEST(LandingMemory, AfterTwoReplacedOnesWritersGetTcpUntilOneIsDropped) {
  MemoryWorld w;
  for (uint32_t memory : {0u, 2u, 3u}) {  // 1 is tcp's
    EXPECT_THAT(w.Kinds(), ElementsAre("shm", "tcp"));
    w.landing->Replace(memory);
  }
  EXPECT_THAT(w.Kinds(), ElementsAre("tcp"));
  w.landing->Drop(2);
  EXPECT_THAT(w.Kinds(), ElementsAre("shm", "tcp"));
  WriterId id = 0;
  const auto writer = w.Dial(id);
  EXPECT_EQ(w.landing->MemoryOf(id), 4u) << "numbers are not used again";
}

TEST(LandingMemory, ADroppedOneGoesWithItsConnections) {
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  MemoryWorld w;
  const auto files = open_files();
  WriterId id = 0;
  {
    const auto writer = w.Dial(id);
    w.landing->Replace(0);
    w.landing->Drop(0);
    w.landing->Drop(0);  // again
    w.Until([&] { return writer->lost; });
    w.landing->Send(id, LaneBusy{kMemoryLane});  // to nobody
    w.landing->Cut(id);
    EXPECT_EQ(w.told.fenced, 1) << "nobody writes a memory that is gone";
    EXPECT_EQ(w.landing->FenceOf(id), FenceKind::kPeerExit);
  }
  EXPECT_EQ(open_files(), files) << "one ring went, one came";
}

TEST(LandingMemory, OfAReleasedWriterNothingIsKept) {
  MemoryWorld w;
  const auto processes_watched = [] {
    return std::ranges::count_if(std::filesystem::directory_iterator("/proc/self/fd"), [](const auto& one) {
      std::error_code gone;
      return std::filesystem::read_symlink(one.path(), gone).string().find("pidfd") != std::string::npos;
    });
  };
  WriterId first = 0, second = 0;
  auto writer = w.Dial(first);
  const auto other = w.Dial(second);
  EXPECT_EQ(processes_watched(), 1) << "both are this process";
  writer.reset();
  w.Until([&] { return w.told.lost == 1; });
  w.loop.Turn();
  w.landing->Release(first);
  EXPECT_EQ(processes_watched(), 1) << "the other is connected";
  EXPECT_FALSE(other->lost);
  w.landing->Cut(second);
  EXPECT_EQ(w.told.fenced, 0) << "its process lives";
  w.landing->Release(second);
  EXPECT_EQ(processes_watched(), 0);
  EXPECT_EQ(w.told.fenced, 0);
}

}  // namespace
}  // namespace baton::decode_worker
