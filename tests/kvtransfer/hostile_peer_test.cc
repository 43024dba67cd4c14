// A peer that lies: what it claims, floods or keeps back costs the worker nothing and harms no other peer.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "kvtransfer/shm/shm_transport.h"
#include "kvtransfer/tcp/tcp_transport.h"
#include "tests/kvtransfer/liar.h"

namespace baton {
namespace {

using tcp::FrameKind;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

// ---- the greeting's claims

TEST(HostilePeer, LandingMemoryOfAnySizeIsNotBelieved) {
  constexpr uint64_t kHuge = ~uint64_t{0};
  for (const auto& [slots, slot_bytes] : std::vector<std::pair<uint64_t, uint64_t>>{
           {1, kHuge - 4094}, {2, uint64_t{1} << 63}, {kHuge, 1}, {1 << 17, 4096}, {1, uint64_t{2} << 30}}) {
    EXPECT_THAT(WhyLost<TcpTransport>(HelloFrame(slots, slot_bytes)), HasSubstr("at most 65536 of 1073741824"));
    EXPECT_THAT(WhyLost<ShmTransport>(HelloFrame(slots, slot_bytes, "1 /proc/1/fd/1")),
                HasSubstr("at most 65536 of 1073741824"));
  }
}

TEST(HostilePeer, OnlyThePeersOwnMemoryIsOpened) {
  const std::string self = StrCat("/proc/", getpid(), "/fd/");
  for (const std::string& path :
       {std::string("/proc/self/root/etc/passwd"), std::string("/proc/../etc/passwd"), std::string("/proc/1/fd/0"),
        self, StrCat(self, "../../1/fd/0"), StrCat(self, "1/x"), StrCat(self, "99999999999")}) {
    EXPECT_THAT(WhyLost<ShmTransport>(HelloFrame(1, 4096, StrCat("7 ", path))),
                HasSubstr("no landing memory of its own"))
        << path;
  }
  EXPECT_THAT(WhyLost<ShmTransport>(HelloFrame(1, 4096, StrCat("0 ", self, "1"))),
              HasSubstr("a greeting without landing memory"));
}

TEST(HostilePeer, MemoryThatItsOwnerMayShortenIsNotMapped) {
  const auto why_lost = [](int fd) {
    return WhyLost<ShmTransport>(HelloFrame(1, 4096, StrCat("7 /proc/", getpid(), "/fd/", fd)));
  };
  const int unsealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(unsealed, 8192), 0);
  EXPECT_THAT(why_lost(unsealed), HasSubstr("no sealed memory"));
  ASSERT_EQ(fcntl(unsealed, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_THAT(why_lost(unsealed), HasSubstr("another process's memory")) << "it does not hold the word";
  close(unsealed);
  const int other_size = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(other_size, 12288), 0);
  ASSERT_EQ(fcntl(other_size, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_THAT(why_lost(other_size), HasSubstr("has 12288 bytes, its greeting says 8192"));
  close(other_size);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_THAT(why_lost(ends[0]), HasSubstr("no sealed memory"));
  close(ends[0]), close(ends[1]);
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
