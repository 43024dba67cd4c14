// Memory that emulated GPUs write into each other: what reaches it, what refuses it, and stores that another device
// sees late where nothing orders them.
#include "kernels/runtime/peer_memory.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/px/px.h"
#include "kernels/runtime/emulated_device.h"

namespace baton::gpu {
namespace {

constexpr unsigned kThreads = 64;

/// A peer's words, and the own ones that it writes.
struct Ends {
  uint32_t *theirs, *own;  ///< [kThreads] data, then a flag
  uint32_t* found;         ///< [kThreads]
  const uint32_t* stop;
  bool fence, barrier;
};
PX_KERNEL void SendKernel(const Ends e) {
  const int t = px::ThreadX(), last = px::BlockDimX() - 1;
  px::StorePeer(e.theirs + t, static_cast<uint32_t>(100 + t));
  if (e.barrier) px::SyncThreads();
  if (t == last) {
    if (e.fence) px::FenceSystem();
    px::StoreSystem(e.theirs + kThreads, 1);
    px::WaitSystem(e.own + kThreads, 1, e.stop);  // the other has read: until then this kernel has not ended
  }
}
PX_KERNEL void ReceiveKernel(const Ends e) {
  px::WaitSystem(e.own + kThreads, 1, e.stop);
  px::Store(e.found + px::ThreadX(), px::Load(e.own + px::ThreadX()));
  px::SyncThreads();
  if (px::ThreadX() == 0) px::StoreSystem(e.theirs + kThreads, 1);
}

/// What one device makes.
struct Side {
  explicit Side(int device)
      : bound(UseDevice(device)), words((kThreads + 1) * 4, MemoryKind::kPeer), found(kThreads * 4) {
    Stream zero;
    zero.FillAsync(words.data(), 0, words.bytes());
    EXPECT_EQ(zero.Synchronize(), "");
    card = CardOf(words);
  }
  std::string bound;
  Memory words, found;
  MemoryCard card;
};

/// Words that the second device found; `card` is what each is told of the other's memory.
std::vector<uint32_t> Exchange(
    const simt::Policy& policy, bool fence, bool barrier,
    const std::function<void(MemoryCard&)>& change = [](MemoryCard&) {}) {
  Memory stop(4, MemoryKind::kShared);
  std::memset(stop.data(), 0, 4);
  std::vector<std::unique_ptr<Side>> sides(2);
  for (int device : {0, 1}) sides[static_cast<size_t>(device)] = std::make_unique<Side>(device);
  std::vector<uint32_t> words(kThreads);
  const auto run = [&](int device) {
    Side &own = *sides[static_cast<size_t>(device)], &other = *sides[static_cast<size_t>(1 - device)];
    EXPECT_EQ(UseDevice(device), "");
    Stream stream;
    stream.SetPolicy(policy);
    MemoryCard card = other.card;
    change(card);
    PeerMemory peer;
    EXPECT_EQ(peer.Open(card), "");
    const Ends ends{static_cast<uint32_t*>(peer.data()),
                    static_cast<uint32_t*>(own.words.data()),
                    static_cast<uint32_t*>(own.found.data()),
                    static_cast<uint32_t*>(stop.data()),
                    fence,
                    barrier};
    Launch(stream, {.grid = {1}, .block = {kThreads}, .awaits_peers = true}, device == 0 ? &SendKernel : &ReceiveKernel,
           ends);
    if (device == 1) stream.CopyAsync(words.data(), own.found.data(), kThreads * 4);
    EXPECT_EQ(stream.Synchronize(), "");
  };
  std::jthread first([&] { run(0); }), second([&] { run(1); });
  first.join();
  second.join();
  return words;
}
std::vector<uint32_t> Sent() {
  std::vector<uint32_t> words;
  for (uint32_t t = 0; t < kThreads; ++t) words.push_back(100 + t);
  return words;
}

TEST(PeerMemory, WhatIsFencedIsSeenUnderEveryPolicy) {
  for (const simt::Policy& policy : simt::AllPolicies()) EXPECT_EQ(Exchange(policy, true, true), Sent());
}
TEST(PeerMemory, AHandleReachesTheSameMemory) {
  const auto other_process = [](MemoryCard& card) { card.process ^= 1; };
  for (const simt::Policy& policy : simt::AllPolicies()) EXPECT_EQ(Exchange(policy, true, true, other_process), Sent());
}
TEST(PeerMemory, AFlagWithoutAFenceIsSeenBeforeWhatItStandsFor) {
  const std::vector<uint32_t> words = Exchange({}, false, true);
  EXPECT_EQ(words, std::vector<uint32_t>(kThreads, 0));
}
TEST(PeerMemory, AFenceOrdersNothingOfThreadsThatDidNotMeet) {
  // The last thread's fence: its own store is seen, those of others need a barrier before it.
  std::vector<uint32_t> want(kThreads, 0);
  want.back() = 100 + kThreads - 1;
  EXPECT_EQ(Exchange({}, true, false), want);
}

TEST(PeerMemory, StoresToMemoryThatIsNotOpenedFail) {
  EXPECT_EQ(UseDevice(5), "");
  const Memory words((kThreads + 1) * 4, MemoryKind::kPeer);
  EXPECT_EQ(UseDevice(6), "");
  const Memory stop(4, MemoryKind::kShared);
  Stream stream;
  auto* theirs = static_cast<uint32_t*>(words.data());
  Launch(stream, {.grid = {1}, .block = {kThreads}}, &SendKernel,
         Ends{theirs, theirs, nullptr, static_cast<uint32_t*>(stop.data()), true, true});
  EXPECT_NE(stream.Synchronize().find("store to a peer of memory that is not the device's"), std::string::npos);
}

TEST(PeerMemory, IsRefusedWithTheReason) {
  EXPECT_EQ(UseDevice(3), "");
  const Memory words(64, MemoryKind::kPeer);
  const MemoryCard card = CardOf(words);
  EXPECT_EQ(UseDevice(4), "");
  const auto open = [](const MemoryCard& of) { return PeerMemory().Open(of); };
  MemoryCard elsewhere = card, other_process = card;
  elsewhere.machine[0] ^= 1;
  other_process.process ^= 1;
  EXPECT_EQ(open(elsewhere), "it is on another machine");
  SetEmulatedPeers(EmulatedPeers::kNoAccess);
  EXPECT_EQ(open(card), "no peer access from GPU 4 to 3 (emulated)");
  SetEmulatedPeers(EmulatedPeers::kNoIpc);
  EXPECT_EQ(open(card), "") << "of this process";
  MemoryCard without = CardOf(words);
  without.process ^= 1;
  EXPECT_EQ(open(without), "CUDA IPC is not supported (emulated)");
  SetEmulatedPeers(EmulatedPeers::kReachable);
  {
    PeerMemory once, twice;
    EXPECT_EQ(once.Open(other_process), "");
    EXPECT_EQ(twice.Open(other_process), "the handle is open already (emulated)");
  }
  EXPECT_EQ(open(other_process), "") << "it was closed";
}

// ---- another process

/// A process that owns device memory of `byte` all over, and does what it is told by a letter: f frees it, e ends.
class Owner {
 public:
  explicit Owner(int byte) {
    int to[2], from[2];
    EXPECT_EQ(pipe(to) + pipe(from), 0);
    pid_ = fork();
    if (pid_ == 0) Own(byte, to[0], from[1], to[1]);
    close(to[0]), close(from[1]);
    tell_ = to[1], hear_ = from[0];
    EXPECT_EQ(read(hear_, &card, sizeof(card)), ssize_t{sizeof(card)});
  }
  ~Owner() {
    Tell('e');
    close(tell_), close(hear_);
  }
  void Tell(char what) {
    if (pid_ == 0) return;
    char done = 0;
    EXPECT_EQ(write(tell_, &what, 1), 1);
    if (what == 'e') {
      const pid_t owner = std::exchange(pid_, 0);
      EXPECT_EQ(waitpid(owner, nullptr, 0), owner);
    } else {
      EXPECT_EQ(read(hear_, &done, 1), 1);
    }
  }

  MemoryCard card;
  static constexpr size_t kBytes = 10000;

 private:
  [[noreturn]] static void Own(int byte, int hear, int tell, int others_end) {
    UseDevice(1);
    auto memory = std::make_unique<Memory>(kBytes, MemoryKind::kPeer);
    Stream stream;
    stream.FillAsync(memory->data(), byte, kBytes);
    stream.Synchronize();
    MemoryCard own = CardOf(*memory);
    own.process ^= 1;  // drawn before the fork
    if (write(tell, &own, sizeof(own)) != ssize_t{sizeof(own)}) _exit(1);
    close(others_end);  // so that the test's end, whatever it is, is this one's
    for (char what = 0; read(hear, &what, 1) == 1 && what != 'e';) {
      memory.reset();
      if (write(tell, &what, 1) != 1) _exit(1);
    }
    _exit(0);
  }
  pid_t pid_ = 0;
  int tell_ = -1, hear_ = -1;
};

/// What a copy of the device's finds there, if it is the same all over; else 0.
int Found(const PeerMemory& peer) {
  std::vector<unsigned char> bytes(Owner::kBytes);
  Stream stream;
  stream.CopyAsync(bytes.data(), peer.data(), bytes.size());
  EXPECT_EQ(stream.Synchronize(), "");
  return std::ranges::count(bytes, bytes[0]) == static_cast<ptrdiff_t>(bytes.size()) ? bytes[0] : 0;
}

TEST(PeerMemoryOfAnotherProcess, IsReadByCopiesAndByNothingElse) {
  EXPECT_EQ(UseDevice(0), "");
  Owner owner(7);
  PeerMemory peer;
  ASSERT_EQ(peer.Open(owner.card), "");
  EXPECT_EQ(Found(peer), 7);
  EXPECT_DEATH(static_cast<void>(*static_cast<volatile char*>(peer.data())), "") << "it is not the host's";
}
TEST(PeerMemoryOfAnotherProcess, IsAnyonesOnceItsOwnerHasFreedIt) {
  EXPECT_EQ(UseDevice(0), "");
  Owner owner(7);
  PeerMemory peer;
  ASSERT_EQ(peer.Open(owner.card), "");
  owner.Tell('f');
  EXPECT_EQ(Found(peer), 0xEE);
}
TEST(PeerMemoryOfAnotherProcess, IsNotOpenedOnceItsOwnerHasEnded) {
  EXPECT_EQ(UseDevice(0), "");
  Owner owner(7);
  PeerMemory before, after;
  ASSERT_EQ(before.Open(owner.card), "");
  owner.Tell('e');
  EXPECT_EQ(Found(before), 7);
  EXPECT_EQ(PeerMemory().Open(owner.card), "the handle is open already (emulated)");
  EXPECT_EQ(UseDevice(2), "");
  EXPECT_EQ(after.Open(owner.card), "the handle's process has ended (emulated)");
}
TEST(PeerMemoryOfAnotherProcess, HasTheBytesThatItHas) {
  EXPECT_EQ(UseDevice(0), "");
  Owner owner(7);
  MemoryCard longer = owner.card;
  longer.bytes += 100;
  PeerMemory peer;
  EXPECT_EQ(peer.Open(longer), "its handle opens 10000 bytes, its card says 10100");
}

TEST(PeerMemory, AStopEndsAWaitThatNobodyAnswers) {
  EXPECT_EQ(UseDevice(0), "");
  Side own(0);
  Memory stop(4, MemoryKind::kShared);
  auto* word = static_cast<uint32_t*>(stop.data());
  *word = 0;
  Stream stream;
  auto* words = static_cast<uint32_t*>(own.words.data());
  Launch(stream, {.grid = {1}, .block = {kThreads}, .awaits_peers = true}, &ReceiveKernel,
         Ends{words, words, static_cast<uint32_t*>(own.found.data()), word, true, true});
  std::jthread stopper([&] { __atomic_store_n(word, 1, __ATOMIC_RELEASE); });
  EXPECT_EQ(stream.Synchronize(), "");
}

}  // namespace
}  // namespace baton::gpu
