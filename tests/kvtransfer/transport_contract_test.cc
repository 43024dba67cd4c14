// The contract of kvtransfer/transport.h, over every backend.
#include "transport_contract.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "common/tls/kernel_tls.h"
#include "kvtransfer/shm/shm_transport.h"
#include "kvtransfer/sim/sim_transport.h"
#include "kvtransfer/tcp/tcp_transport.h"
#include "tests/common/tls_fixture.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kSlotBytes = 1 << 20;
constexpr const char* kWriterFlag = "--write-and-wait";

/// What workers have with --cluster-secret-file and --kv-tls.
trust::PeerTrust InTls() {
  static const auto tls = tls::TestPeerTls();
  return {.secret = trust::ClusterSecret::Of(std::string(32, 's')).value(), .tls = tls};
}

std::vector<Backend> Backends() {
  std::vector<Backend> backends = {
      {"tcp",
       [](LandingShape shape, TransportEvents& events) -> absl::StatusOr<std::unique_ptr<Transport>> {
         return TcpTransport::Create({.landing = shape}, events);
       },
       FenceKind::kReceiverWrites},
      {"tcp_in_tls",
       [](LandingShape shape, TransportEvents& events) -> absl::StatusOr<std::unique_ptr<Transport>> {
         return TcpTransport::Create({.landing = shape, .trust = InTls()}, events);
       },
       FenceKind::kReceiverWrites},
      {"shm_in_tls",
       [](LandingShape shape, TransportEvents& events) -> absl::StatusOr<std::unique_ptr<Transport>> {
         return ShmTransport::Create({.landing = shape, .trust = InTls()}, events);
       },
       FenceKind::kPeerExit,
       /*maps_slots=*/true},
      {"shm",
       [](LandingShape shape, TransportEvents& events) -> absl::StatusOr<std::unique_ptr<Transport>> {
         return ShmTransport::Create({.landing = shape}, events);
       },
       FenceKind::kPeerExit,
       /*maps_slots=*/true},
  };
  if (const tls::KernelTlsChoice choice = tls::ChooseKernelTls(/*wanted=*/true); choice.kernel != nullptr) {
    backends.push_back({"tcp_in_tls_of_the_kernel",
                        [kernel = choice.kernel](
                            LandingShape shape, TransportEvents& events) -> absl::StatusOr<std::unique_ptr<Transport>> {
                          trust::PeerTrust trust = InTls();
                          trust.tls = tls::TestPeerTls(kernel);
                          return TcpTransport::Create({.landing = shape, .trust = trust}, events);
                        },
                        FenceKind::kReceiverWrites});
  }
  for (Backend& backend : UcxBackends()) backends.push_back(std::move(backend));
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    for (FenceKind fence : {FenceKind::kForcedClose, FenceKind::kReceiverWrites, FenceKind::kPeerExit}) {
      const char* kind = fence == FenceKind::kForcedClose      ? "sim_put_"
                         : fence == FenceKind::kReceiverWrites ? "sim_message_"
                                                               : "sim_shm_";
      backends.push_back(
          {kind + std::to_string(seed),
           [fence, network = std::make_shared<SimNetwork>(seed)](
               LandingShape shape, TransportEvents& events) -> absl::StatusOr<std::unique_ptr<Transport>> {
             return std::make_unique<SimTransport>(network, fence, shape, events);
           },
           fence, /*maps_slots=*/false, /*one_process=*/true});
    }
  }
  return backends;
}

/// One side: a transport and what it was told.
struct Side final : TransportEvents {
  void OnConnected(PeerNumber peer) override {
    connected.push_back(peer), told.push_back("connected " + std::to_string(peer));
  }
  void OnMessage(PeerNumber peer, std::string_view message) override {
    told.push_back("message " + std::to_string(peer));
    messages.emplace_back(message);
    if (on_message) on_message(peer, message);
  }
  void OnLost(PeerNumber peer, const absl::Status& why) override { lost.push_back(peer), lost_why = why; }
  bool MayLand(PeerNumber, const LandingPlace& place) override { return asked.push_back(place), may_land; }
  std::vector<PeerNumber> connected, lost;
  absl::Status lost_why;
  std::vector<std::string> messages;
  std::vector<std::string> told;  ///< connections and messages in the order they came
  std::vector<LandingPlace> asked;
  std::function<void(PeerNumber, std::string_view)> on_message;
  bool may_land = true;
  std::unique_ptr<Transport> transport;
};

class TransportContract : public ::testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    backend_ = Backends()[GetParam()];
    auto receiver = backend_.make({4, kSlotBytes}, receiver_), sender = backend_.make({}, sender_);
    ASSERT_TRUE(receiver.ok()) << backend_.name << " was built and does not open: " << receiver.status();
    ASSERT_TRUE(sender.ok()) << sender.status();
    EXPECT_EQ((*receiver)->fence(), backend_.fence);
    EXPECT_EQ((*receiver)->wait_fd() < 0, backend_.one_process);
    receiver_.transport = *std::move(receiver), sender_.transport = *std::move(sender);
    const auto peer = sender_.transport->Connect(receiver_.transport->address());
    ASSERT_TRUE(peer.ok()) << peer.status();
    peer_ = *peer;
    Until([this] { return !receiver_.connected.empty() && sender_.transport->landing_of(peer_).slots > 0; });
  }

  /// Lets both sides work until `enough`, at most 10 s.
  void Until(const std::function<bool()>& enough) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!enough()) {
      Work();
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "took too long";
    }
  }
  void Work() {
    if (sender_.transport) sender_.transport->Progress();
    if (receiver_.transport) receiver_.transport->Progress();
  }
  static std::vector<std::byte> Pattern(size_t bytes, uint32_t seed) {
    std::vector<std::byte> data(bytes);
    for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>((i * 2654435761u + seed * 40503u) >> 13);
    return data;
  }
  std::span<const std::byte> Slot(uint32_t slot) {
    return receiver_.transport->landing().subspan(slot * kSlotBytes, kSlotBytes);
  }
  bool Landed(uint32_t slot, const std::vector<std::byte>& bytes) {
    return std::memcmp(Slot(slot).data(), bytes.data(), bytes.size()) == 0;
  }

  Backend backend_;
  Side receiver_, sender_;
  PeerNumber peer_ = 0;
};

class MappedSlots : public TransportContract {};
class WrittenByTheReceiver : public TransportContract {};
class FencedByUs : public TransportContract {};
class FencedByThePeersExit : public TransportContract {};
class BetweenProcesses : public TransportContract {};

TEST_P(TransportContract, OnlySomeMapThePeersSlots) {
  EXPECT_EQ(!sender_.transport->slot_of(peer_, 2).empty(), backend_.maps_slots);
}

TEST_P(MappedSlots, BytesThatArePackedInAMappedSlotAreWrittenFromThere) {
  const std::span<std::byte> slot = sender_.transport->slot_of(peer_, 2);
  EXPECT_TRUE(sender_.transport->slot_of(peer_, 4).empty()) << "there are 4";
  EXPECT_TRUE(sender_.transport->slot_of(peer_ + 100, 0).empty());
  ASSERT_EQ(slot.size(), kSlotBytes);
  const auto bytes = Pattern(5000, 3);
  std::memcpy(slot.data(), bytes.data(), bytes.size());
  bool done = false;
  sender_.transport->Write(peer_, {{7, 1, 0}, {2, 1}}, slot.first(bytes.size()),
                           [&done](const absl::Status& s) { done = s.ok(); });
  Until([&] { return done; });
  EXPECT_TRUE(Landed(2, bytes));
  sender_.transport->Close(peer_, [] {});
  EXPECT_TRUE(sender_.transport->slot_of(peer_, 2).empty());
}

TEST_P(TransportContract, MessagesArriveOnceAndInOrderBothWays) {
  int done = 0;
  for (int i = 0; i < 100; ++i) {
    sender_.transport->Send(peer_, "to " + std::to_string(i), [&done](const absl::Status& s) { done += s.ok(); });
    receiver_.transport->Send(receiver_.connected.at(0), "back " + std::to_string(i),
                              [&done](const absl::Status& s) { done += s.ok(); });
  }
  Until([&] { return receiver_.messages.size() == 100 && sender_.messages.size() == 100 && done == 200; });
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(receiver_.messages[static_cast<size_t>(i)], "to " + std::to_string(i));
    EXPECT_EQ(sender_.messages[static_cast<size_t>(i)], "back " + std::to_string(i));
  }
}

TEST_P(TransportContract, APeerIsConnectedBeforeItsFirstMessage) {
  for (int i = 0; i < 50; ++i) {
    receiver_.told.clear(), receiver_.messages.clear();
    const auto peer = sender_.transport->Connect(receiver_.transport->address());
    ASSERT_TRUE(peer.ok()) << peer.status();
    sender_.transport->Send(*peer, "first", nullptr);
    for (int turn = 0; turn < 100; ++turn)
      sender_.transport->Progress();  // both are on their way before the receiver looks
    Until([&] { return receiver_.messages.size() == 1; });
    const std::string number = std::to_string(receiver_.connected.back());
    ASSERT_THAT(receiver_.told, ElementsAre("connected " + number, "message " + number));
  }
}

TEST_P(TransportContract, BytesAreInTheSlotWhenTheNoticeComes) {
  const LaneKey lane{9, 1, 2};
  for (uint32_t round = 0; round < 20; ++round) {
    const auto data = Pattern(round % 3 == 0 ? kSlotBytes : 1000 + round * 4096, round);
    bool right = false;
    receiver_.on_message = [&](PeerNumber, std::string_view) { right = Landed(round % 4, data); };
    sender_.transport->Write(peer_, {lane, {round % 4, round + 1}}, data, [&](const absl::Status& status) {
      ASSERT_TRUE(status.ok()) << status;
      sender_.transport->Send(peer_, "full", nullptr);
    });
    Until([&] { return receiver_.messages.size() == round + 1; });
    EXPECT_TRUE(right) << "round " << round;
  }
}

TEST_P(TransportContract, AFlushEndsAfterTheWritesBeforeIt) {
  std::vector<std::vector<std::byte>> data;
  int written = 0;
  bool flushed = false;
  for (uint32_t i = 0; i < 4; ++i) data.push_back(Pattern(kSlotBytes, i));
  for (uint32_t i = 0; i < 4; ++i)
    sender_.transport->Write(peer_, {{9, 1, 0}, {i, 1}}, data[i], [&](const absl::Status& s) { written += s.ok(); });
  sender_.transport->Flush(peer_, [&](const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(written, 4);
    for (uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(Landed(i, data[i])) << i;
    flushed = true;
  });
  EXPECT_FALSE(flushed) << "no Done comes from inside a call";
  Until([&] { return flushed; });
}

TEST_P(TransportContract, AWriteOutsideTheSlotsIsRefused) {
  const auto data = Pattern(kSlotBytes, 1);
  std::vector<absl::StatusCode> codes;
  const auto note = [&codes](const absl::Status& status) { codes.push_back(status.code()); };
  sender_.transport->Write(peer_, {{9, 1, 0}, {4, 1}}, data, note);
  const auto large = Pattern(kSlotBytes + 1, 1);
  sender_.transport->Write(peer_, {{9, 1, 0}, {3, 1}}, large, note);
  sender_.transport->Write(peer_ + 100, {{9, 1, 0}, {3, 1}}, data, note);
  Until([&] { return codes.size() == 3; });
  EXPECT_THAT(codes, ElementsAre(absl::StatusCode::kInvalidArgument, absl::StatusCode::kInvalidArgument,
                                 absl::StatusCode::kUnavailable));
}

TEST_P(WrittenByTheReceiver, ARefusedSlotStaysAsItWas) {
  receiver_.may_land = false;
  const auto data = Pattern(kSlotBytes, 1);
  sender_.transport->Write(peer_, {{9, 2, 3}, {1, 5}}, data,
                           [&](const absl::Status&) { sender_.transport->Send(peer_, "full", nullptr); });
  Until([&] { return receiver_.messages.size() == 1; });
  ASSERT_FALSE(receiver_.asked.empty());
  EXPECT_EQ(receiver_.asked[0].lane, (LaneKey{9, 2, 3}));
  EXPECT_EQ(receiver_.asked[0].slot, (SlotTurn{1, 5}));
  for (std::byte b : Slot(1)) ASSERT_EQ(b, std::byte{0});
}

TEST_P(TransportContract, APeerThatIsGoneFailsWhatIsOutstandingAndIsToldOnce) {
  receiver_.transport.reset();
  const auto data = Pattern(kSlotBytes, 1);
  int ended = 0, written = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    sender_.transport->Write(peer_, {{9, 1, 0}, {i, 1}}, data,
                             [&](const absl::Status& status) { ++ended, written += status.ok(); });
  }
  sender_.transport->Flush(peer_, [&](const absl::Status& status) {
    ++ended;
    EXPECT_TRUE(!status.ok() || written == 4);
  });
  Until([&] { return ended == 5 && sender_.lost.size() == 1; });
  for (int i = 0; i < 100; ++i) Work();
  EXPECT_THAT(sender_.lost, ElementsAre(peer_));
  EXPECT_FALSE(sender_.lost_why.ok());
  bool refused = false;
  sender_.transport->Send(peer_, "anybody?", [&refused](const absl::Status& status) { refused = !status.ok(); });
  Until([&] { return refused; });
}

TEST_P(FencedByUs, AfterTheFenceNothingLands) {
  const auto data = Pattern(kSlotBytes, 1);
  for (uint32_t i = 0; i < 4; ++i)
    sender_.transport->Write(peer_, {{9, 1, 0}, {i, 1}}, data, [](const absl::Status&) {});
  bool fenced = false;
  receiver_.transport->Close(receiver_.connected.at(0), [&fenced] { fenced = true; });
  Until([&] { return fenced; });
  std::memset(receiver_.transport->landing().data(), 0, receiver_.transport->landing().size());
  Until([&] { return !sender_.lost.empty(); });
  for (int i = 0; i < 1000; ++i) Work();
  for (std::byte b : receiver_.transport->landing()) ASSERT_EQ(b, std::byte{0});
  EXPECT_TRUE(receiver_.lost.empty()) << "we closed it ourselves";
}

TEST_P(TransportContract, CloseEndsWhatIsOutstanding) {
  const auto data = Pattern(kSlotBytes, 1);
  int ended = 0;
  for (uint32_t i = 0; i < 4; ++i)
    sender_.transport->Write(peer_, {{9, 1, 0}, {i, 1}}, data, [&ended](const absl::Status&) { ++ended; });
  sender_.transport->Flush(peer_, [&ended](const absl::Status&) { ++ended; });
  sender_.transport->Close(peer_, [] {});
  Until([&] { return ended == 5; });
  Until([&] { return receiver_.lost.size() == 1; });
  EXPECT_TRUE(sender_.lost.empty());
}

TEST_P(BetweenProcesses, TheWaitDescriptorTellsOfAMessage) {
  while (receiver_.transport->Progress() || sender_.transport->Progress()) {
  }
  pollfd waiting{receiver_.transport->wait_fd(), POLLIN, 0};
  ASSERT_GE(waiting.fd, 0);
  sender_.transport->Send(peer_, "wake up", nullptr);
  for (int i = 0; i < 100; ++i) sender_.transport->Progress();
  EXPECT_EQ(poll(&waiting, 1, 5000), 1) << "a sleeping receiver is not woken";
  Until([&] { return receiver_.messages.size() == 1; });
}

TEST_P(TransportContract, ThePathSaysWhatCarriesTheBytes) {
  const std::string path = sender_.transport->path(peer_);
  if (backend_.name == "ucx_shm") {
    EXPECT_THAT(path, ::testing::AnyOf(HasSubstr("posix/memory"), HasSubstr("cma/memory")));
    EXPECT_THAT(path, HasSubstr(" put"));
  } else if (backend_.name == "ucx_tcp") {
    EXPECT_EQ(path, "tcp/lo messages");
  } else if (backend_.name == "ucx_put") {
    EXPECT_EQ(path, "tcp/lo put");
  } else if (backend_.name == "tcp_in_tls") {
    EXPECT_EQ(path, "tcp in TLS");
  } else if (backend_.name == "tcp_in_tls_of_the_kernel") {
    EXPECT_EQ(path, "tcp in TLS of the kernel");
  } else {
    EXPECT_EQ(path, sender_.transport->name());
  }
}

TEST_P(TransportContract, AForeignAddressIsRefused) {
  EXPECT_EQ(sender_.transport->Connect("pigeon:loft 3").status().code(), absl::StatusCode::kInvalidArgument);
}

/// The child's life: connects to `address`, writes once, says so, then waits to be killed. Told to, it hangs up first.
[[noreturn]] void WriteAndWait(const std::string& backend_name, const std::string& address) {
  const std::vector<Backend> backends = Backends();
  const Backend& backend = *std::ranges::find(backends, backend_name, &Backend::name);
  Side side;
  auto transport = backend.make({}, side);
  if (!transport.ok()) _exit(1);
  const auto peer = (*transport)->Connect(address);
  if (!peer.ok()) _exit(2);
  bool hang_up = false;
  side.on_message = [&hang_up](PeerNumber, std::string_view) { hang_up = true; };
  const std::vector<std::byte> data(kSlotBytes, std::byte{7});
  (*transport)->Write(*peer, {{9, 1, 0}, {0, 1}}, data, [&](const absl::Status&) {
    (*transport)->Send(*peer, "full", nullptr);
  });
  while (true) {
    (*transport)->Progress();
    if (std::exchange(hang_up, false)) (*transport)->Close(*peer, [] {});
  }
}

/// This program again, as a writer. A fork alone would inherit the locks of UCX as its threads held them.
pid_t SpawnWriter(const std::string& backend_name, const std::string& address) {
  const pid_t child = fork();
  if (child == 0) {
    execl("/proc/self/exe", "transport_contract_test", kWriterFlag, backend_name.c_str(), address.c_str(), nullptr);
    _exit(127);
  }
  return child;
}

TEST_P(FencedByThePeersExit, TheExitOfTheWriterIsTheFenceAndAStopIsNot) {
  const pid_t child = SpawnWriter(backend_.name, receiver_.transport->address());
  Until([&] { return receiver_.messages.size() == 1; });
  EXPECT_EQ(Slot(0)[kSlotBytes - 1], std::byte{7});
  kill(child, SIGSTOP);
  bool fenced = false;
  receiver_.transport->Close(receiver_.connected.back(), [&fenced] { fenced = true; });
  const auto end = std::chrono::steady_clock::now() + milliseconds(100);
  while (std::chrono::steady_clock::now() < end) Work();
  EXPECT_FALSE(fenced) << "a stopped process still maps our memory";
  kill(child, SIGKILL);
  Until([&] { return fenced; });
  waitpid(child, nullptr, 0);
}

TEST_P(FencedByThePeersExit, ALostWriterThatLivesIsNotFenced) {
  const pid_t child = SpawnWriter(backend_.name, receiver_.transport->address());
  Until([&] { return receiver_.messages.size() == 1; });
  const PeerNumber writer = receiver_.connected.back();
  receiver_.transport->Send(writer, "hang up", nullptr);
  Until([&] { return receiver_.lost.size() == 1; });
  int fenced = 0;
  for (int i = 0; i < 2; ++i) receiver_.transport->Close(writer, [&fenced] { ++fenced; });
  const auto end = std::chrono::steady_clock::now() + milliseconds(100);
  while (std::chrono::steady_clock::now() < end) Work();
  EXPECT_EQ(fenced, 0) << "a living process may still map our memory";
  kill(child, SIGKILL);
  Until([&] { return fenced == 2; });
  waitpid(child, nullptr, 0);
}

TEST_P(FencedByUs, ALostPeerIsFenced) {
  sender_.transport->Close(peer_, [] {});
  Until([&] { return receiver_.lost.size() == 1; });
  int fenced = 0;
  for (int i = 0; i < 2; ++i) receiver_.transport->Close(receiver_.lost[0], [&fenced] { ++fenced; });
  Until([&] { return fenced == 2; });
}

// The backends with some property, by number.
auto Those(bool (*have)(const Backend&)) {
  std::vector<size_t> numbers;
  const std::vector<Backend> all = Backends();
  for (size_t i = 0; i < all.size(); ++i) {
    if (have(all[i])) numbers.push_back(i);
  }
  return ::testing::ValuesIn(numbers);
}
std::string NameOf(const ::testing::TestParamInfo<size_t>& info) { return Backends()[info.param].name; }

INSTANTIATE_TEST_SUITE_P(Backends, TransportContract, Those([](const Backend&) { return true; }), NameOf);
INSTANTIATE_TEST_SUITE_P(Backends, MappedSlots, Those([](const Backend& b) { return b.maps_slots; }), NameOf);
INSTANTIATE_TEST_SUITE_P(Backends, WrittenByTheReceiver,
                         Those([](const Backend& b) { return b.fence == FenceKind::kReceiverWrites; }), NameOf);
INSTANTIATE_TEST_SUITE_P(Backends, FencedByUs, Those([](const Backend& b) { return b.fence != FenceKind::kPeerExit; }),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Backends, FencedByThePeersExit,
                         Those([](const Backend& b) { return b.fence == FenceKind::kPeerExit && !b.one_process; }),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Backends, BetweenProcesses, Those([](const Backend& b) { return !b.one_process; }), NameOf);

}  // namespace

int Main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == kWriterFlag) WriteAndWait(argv[2], argv[3]);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
