// A peer that lies: what it claims, floods or keeps back costs the worker nothing and harms no other peer.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "kvtransfer/shm/shm_transport.h"
#include "kvtransfer/tcp/tcp_transport.h"
#include "tests/kvtransfer/liar.h"

namespace baton {
namespace {

using tcp::FrameKind;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

size_t Descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

/// Says `bytes` to a worker with one landing slot of 4,096 bytes. The reason why the connection was given up.
template <class TransportOfKind>
std::string WhyLost(std::string_view bytes) {
  Side side;
  auto victim = TransportOfKind::Create({.landing = {1, 4096}}, side);
  EXPECT_TRUE(victim.ok()) << victim.status();
  Liar liar(**victim);
  liar.Say(bytes);
  Until(**victim, [&] { return !side.lost.empty(); });
  EXPECT_THAT(side.connected, IsEmpty());
  return std::string(side.lost_why.message());
}

// ---- before the greeting

TEST(HostilePeer, NothingButAGreetingMayComeFirst) {
  for (const FrameKind kind : {FrameKind::kMessage, FrameKind::kWrite, FrameKind::kFlush, FrameKind::kFlushed})
    EXPECT_THAT(WhyLost<TcpTransport>(Promise(kind, 8)), HasSubstr("no greeting came first"));
  EXPECT_THAT(WhyLost<TcpTransport>(Promise(FrameKind::kMessage, 16 << 20)), HasSubstr("no greeting came first"));
  EXPECT_THAT(WhyLost<TcpTransport>(Promise(FrameKind::kWrite, uint64_t{1} << 62)),
              HasSubstr("no greeting came first"));
}

TEST(HostilePeer, AGreetingIsShort) {
  EXPECT_THAT(WhyLost<TcpTransport>(Promise(FrameKind::kHello, 257)), HasSubstr("257 bytes, at most 256"));
  EXPECT_THAT(WhyLost<TcpTransport>(Promise(FrameKind::kHello, 16 << 20)), HasSubstr("at most 256"));
}

TEST(HostilePeer, APeerThatDoesNotGreetIsDroppedInTwoSeconds) {
  Side side;
  auto victim = TcpTransport::Create({.landing = {1, 4096}}, side);
  ASSERT_TRUE(victim.ok());
  const Liar silent(**victim);
  Until(**victim, [&] { return !side.lost.empty(); });
  EXPECT_TRUE(absl::IsDeadlineExceeded(side.lost_why)) << side.lost_why;
}

TEST(HostilePeer, StrangersThatKeepSilentDoNotKeepAWorkerOut) {
  Side side, other;
  auto victim = TcpTransport::Create({.landing = {1, 4096}}, side), worker = TcpTransport::Create({}, other);
  ASSERT_TRUE(victim.ok() && worker.ok());
  std::vector<std::unique_ptr<Liar>> silent;
  for (int i = 0; i < 300; ++i) {
    silent.push_back(std::make_unique<Liar>(**victim));
    (*victim)->Progress();
  }
  Until(**victim, [&] { return side.lost.size() >= 300 - 256; });
  EXPECT_TRUE(absl::IsResourceExhausted(side.lost_why)) << side.lost_why;
  ASSERT_TRUE((*worker)->Connect((*victim)->address()).ok());
  Until(**victim, [&] { return (*worker)->Progress(), !side.connected.empty(); });
}

TEST(HostilePeer, StrangersOfOneAddressTakeNoTimeToGreetFromOthers) {
  Side side;
  auto victim = TcpTransport::Create({.landing = {1, 4096}}, side);
  ASSERT_TRUE(victim.ok());
  for (int tries = 0; tries < 10 && side.connected.empty(); ++tries) {  // a machine may need more than the 2 s for it
    Liar slow(**victim, "127.0.0.3");
    std::vector<std::unique_ptr<Liar>> silent;
    for (int i = 0; i < 300; ++i) {
      silent.push_back(std::make_unique<Liar>(**victim, "127.0.0.2"));
      (*victim)->Progress();
    }
    slow.Say(HelloFrame(1, 4096));
    Until(**victim, [&] { return !side.connected.empty() || slow.Ended(); });
  }
  EXPECT_FALSE(side.connected.empty());
  EXPECT_TRUE(absl::IsResourceExhausted(side.lost_why) || absl::IsDeadlineExceeded(side.lost_why)) << side.lost_why;
}

TEST(HostilePeer, WhoGreetsMayComeAgainAndAgain) {
  Side side;
  auto victim = TcpTransport::Create({.landing = {1, 4096}}, side);
  ASSERT_TRUE(victim.ok());
  for (size_t i = 1; i <= 120; ++i) {
    Liar one(**victim, "127.0.0.3");
    one.Say(HelloFrame(1, 4096));
    Until(**victim, [&] { return side.connected.size() == i; });
  }
}

// ---- the greeting's claims

TEST(HostilePeer, LandingMemoryOfAnySizeIsNotBelieved) {
  constexpr uint64_t kHuge = ~uint64_t{0};
  for (const auto& [slots, slot_bytes] : std::vector<std::pair<uint64_t, uint64_t>>{
           {1, kHuge - 4094}, {2, uint64_t{1} << 63}, {kHuge, 1}, {1 << 17, 4096}, {1, uint64_t{2} << 30}}) {
    EXPECT_THAT(WhyLost<TcpTransport>(HelloFrame(slots, slot_bytes)), HasSubstr("at most 65536 of 1073741824"));
    EXPECT_THAT(WhyLost<ShmTransport>(HelloFrame(slots, slot_bytes)), HasSubstr("at most 65536 of 1073741824"));
  }
}

/// As WhyLost, of a greeting of one slot of 4,096 bytes with these descriptors. None of them stays open.
std::string WhyNotMapped(const std::vector<int>& given) {
  Side side;
  auto victim = ShmTransport::Create({.landing = {1, 4096}}, side);
  EXPECT_TRUE(victim.ok()) << victim.status();
  const size_t before = Descriptors();
  {
    Liar liar(**victim);
    liar.Say(HelloFrame(1, 4096), given);
    Until(**victim, [&] { return !side.lost.empty(); });
  }
  EXPECT_EQ(Descriptors(), before);
  return std::string(side.lost_why.message());
}

int Memory(off_t bytes, int seals) {
  const int memory = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(ftruncate(memory, bytes), 0);
  EXPECT_EQ(fcntl(memory, F_ADD_SEALS, seals), 0);
  return memory;
}

TEST(HostilePeer, MemoryThatItsOwnerMayChangeIsNotMapped) {
  constexpr int kAll = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  EXPECT_THAT(WhyLost<ShmTransport>(HelloFrame(1, 4096)), HasSubstr("a greeting without landing memory"));
  const int unsealed = Memory(4096, F_SEAL_SEAL), other_size = Memory(8192, kAll), good = Memory(4096, kAll);
  EXPECT_THAT(WhyNotMapped({unsealed}), HasSubstr("no sealed memory"));
  EXPECT_THAT(WhyNotMapped({other_size}), HasSubstr("has 8192 bytes, its greeting says 4096"));
  EXPECT_THAT(WhyNotMapped({unsealed, good}), HasSubstr("no sealed memory")) << "the first counts";
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_THAT(WhyNotMapped({ends[0]}), HasSubstr("no sealed memory"));
  for (const int one : {unsealed, other_size, good, ends[0], ends[1]}) close(one);
}

TEST(HostilePeer, AnotherUsersProcessIsRefusedBeforeAWord) {
  if (geteuid() != 0) GTEST_SKIP() << "root alone may be another user";
  Side side;
  auto victim = ShmTransport::Create({.landing = {1, 4096}}, side);
  ASSERT_TRUE(victim.ok());
  const std::string address = (*victim)->address();
  const pid_t stranger = fork();
  if (stranger == 0) {
    if (setresuid(65534, 65534, 65534) != 0) _exit(1);
    const int socket = DialAt(address);
    pollfd end{socket, POLLIN, 0};
    char heard = 0;
    _exit(poll(&end, 1, 5000) == 1 && recv(socket, &heard, 1, 0) <= 0 ? 7 : 1);
  }
  Until(**victim, [&] { return !side.lost.empty(); });
  EXPECT_THAT(std::string(side.lost_why.message()), HasSubstr("is of user 65534, this one of 0"));
  int status = 0;
  ASSERT_EQ(waitpid(stranger, &status, 0), stranger);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_THAT(side.connected, IsEmpty());
}

TEST(HostilePeer, DescriptorsThatNobodyAskedForAreClosed) {
  Side side;
  auto victim = ShmTransport::Create({.landing = {1, 4096}}, side);
  ASSERT_TRUE(victim.ok());
  const int memory = Memory(4096, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  const size_t before = Descriptors();
  {
    Liar liar(**victim);
    liar.Say(HelloFrame(1, 4096), {memory});
    Until(**victim, [&] { return !side.connected.empty(); });
    const size_t connected = Descriptors();
    const std::string message = Frame({.kind = FrameKind::kMessage}, "x");
    for (int i = 1; i <= 20; ++i) {
      liar.Say(message, std::vector<int>(static_cast<size_t>(i), memory));
      Until(**victim, [&] { return side.messages == i; });
    }
    EXPECT_LE(Descriptors(), connected + 1);
  }
  Until(**victim, [&] { return !side.lost.empty(); });
  close(memory);
  EXPECT_EQ(Descriptors(), before) << "less the memory, and the pidfd of a peer that may write";
}

// ---- after the greeting

TEST(HostilePeer, AWriteLargerThanASlotIsNotSwallowedForEver) {
  EXPECT_THAT(WhyLost<TcpTransport>(Promise(FrameKind::kHello, 0)), HasSubstr("a greeting out of place"));
  Side side;
  auto victim = TcpTransport::Create({.landing = {1, 4096}}, side);
  ASSERT_TRUE(victim.ok());
  Liar liar(**victim);
  liar.Say(HelloFrame(0, 0) + Promise(FrameKind::kWrite, uint64_t{1} << 62));
  Until(**victim, [&] { return !side.lost.empty(); });
  EXPECT_THAT(std::string(side.lost_why.message()), HasSubstr("4611686018427387904 bytes, at most 4096"));
}

TEST(HostilePeer, APeerThatReadsNoAnswersIsGivenUp) {
  Side side;
  auto victim = TcpTransport::Create({.landing = {1, 4096}}, side);
  ASSERT_TRUE(victim.ok());
  Liar liar(**victim);
  liar.Say(HelloFrame(0, 0));
  std::string flushes;
  for (int i = 0; i < 1000; ++i) flushes += Frame({.kind = FrameKind::kFlush}, "");
  Until(**victim, [&] { return liar.Repeat(flushes), !side.lost.empty(); });
  EXPECT_THAT(std::string(side.lost_why.message()), HasSubstr("the peer does not read"));
}

}  // namespace
}  // namespace baton
