// Peers' processes: one descriptor for each, however many connections it has had.
#include "kvtransfer/peer_exit.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

namespace baton {
namespace {

int64_t Descriptors() { return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}); }

/// A process that does nothing until it is killed.
class Idle {
 public:
  Idle() : pid_(fork()) {
    if (pid_ == 0) {
      while (true) pause();
    }
  }
  ~Idle() { Kill(); }
  Idle(const Idle&) = delete;
  Idle& operator=(const Idle&) = delete;
  void Kill() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }
  PeerExit exit() const { return PeerExit::Of(pid_).value(); }

 private:
  pid_t pid_;
};

class PeerExitsTest : public ::testing::Test {
 protected:
  ~PeerExitsTest() override { close(epoll_); }
  void Await(uint64_t peer) {
    EXPECT_TRUE(exits_.Await(peer, epoll_, peer, [this, peer] { fenced_.push_back(peer); }));
  }
  bool wakes() const {
    epoll_event event{};
    return epoll_wait(epoll_, &event, 1, 0) > 0;
  }
  const int epoll_ = epoll_create1(EPOLL_CLOEXEC);
  PeerExits exits_;
  std::vector<uint64_t> fenced_;
};

TEST_F(PeerExitsTest, AProcessThatComesAndGoesHoldsOneDescriptor) {
  Idle writer, other;
  const int64_t before = Descriptors();
  for (uint64_t peer = 1; peer <= 100; ++peer) {
    exits_.Know(peer, writer.exit());
    Await(peer);
  }
  exits_.Know(101, other.exit());
  EXPECT_EQ(Descriptors(), before + 2);
  Await(101);
  EXPECT_FALSE(exits_.Progress());
  writer.Kill();
  EXPECT_TRUE(wakes());
  EXPECT_TRUE(exits_.Progress());
  EXPECT_EQ(fenced_.size(), 100);
  EXPECT_EQ(std::ranges::count(fenced_, 101), 0) << "the other lives";
  EXPECT_EQ(Descriptors(), before + 1);
  EXPECT_FALSE(wakes());
  EXPECT_FALSE(exits_.Await(1, epoll_, 1, [] {})) << "it is fenced";
  other.Kill();
  EXPECT_TRUE(exits_.Progress());
  EXPECT_EQ(Descriptors(), before);
}

TEST_F(PeerExitsTest, OneWhoseConnectionIsOpenIsFencedWhenItIsClosed) {
  Idle writer;
  const int64_t before = Descriptors();
  for (uint64_t peer : {1, 2}) exits_.Know(peer, writer.exit());
  Await(1);
  writer.Kill();
  EXPECT_TRUE(exits_.Progress());
  EXPECT_EQ(fenced_, (std::vector<uint64_t>{1}));
  EXPECT_FALSE(wakes()) << "nobody waits";
  EXPECT_FALSE(exits_.Progress());
  Await(2);
  EXPECT_TRUE(wakes());
  EXPECT_TRUE(exits_.Progress());
  EXPECT_EQ(fenced_, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(Descriptors(), before);
}

TEST_F(PeerExitsTest, WhoeverAsksAgainIsToldAgain) {
  Idle writer;
  exits_.Know(1, writer.exit());
  Await(1);
  Await(1);
  writer.Kill();
  EXPECT_TRUE(exits_.Progress());
  EXPECT_EQ(fenced_, (std::vector<uint64_t>{1, 1}));
}

TEST_F(PeerExitsTest, ConnectionsThatAreOverLeaveNothingWhileTheirProcessLives) {
  Idle writer;
  const int64_t before = Descriptors();
  for (uint64_t peer = 1; peer <= 100; ++peer) {
    exits_.Know(peer, writer.exit());
    Await(peer);
    exits_.Release(peer);
    ASSERT_EQ(exits_.peers(), 0) << peer;
    ASSERT_EQ(exits_.waiters(), 0) << peer;
    ASSERT_EQ(Descriptors(), before) << peer;
  }
  writer.Kill();
  EXPECT_FALSE(wakes());
  EXPECT_FALSE(exits_.Progress());
  EXPECT_TRUE(fenced_.empty());
}

TEST_F(PeerExitsTest, WhoIsReleasedTakesNobodyElsesFenceAlong) {
  Idle writer;
  for (uint64_t peer : {1, 2, 3}) exits_.Know(peer, writer.exit());
  Await(1), Await(2);
  exits_.Release(1);
  exits_.Release(1);
  EXPECT_EQ(exits_.waiters(), 1);
  EXPECT_EQ(exits_.peers(), 2);
  EXPECT_FALSE(exits_.Progress()) << "it lives";
  writer.Kill();
  EXPECT_TRUE(wakes());
  EXPECT_TRUE(exits_.Progress());
  EXPECT_EQ(fenced_, (std::vector<uint64_t>{2}));
  Await(3);
  EXPECT_TRUE(exits_.Progress());
  EXPECT_EQ(fenced_, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(exits_.peers(), 0);
}

}  // namespace
}  // namespace baton
