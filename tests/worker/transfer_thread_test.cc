// The transfer thread with real transports and others that post to it. Links no gRPC: runs under ThreadSanitizer.
#include "worker/transfer/transfer_thread.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>

#include "kvtransfer/shm/shm_transport.h"
#include "kvtransfer/tcp/tcp_transport.h"
#include "worker/transfer/transfer_beat.h"
#include "worker/transfer/turn_news.h"

namespace baton::worker {
namespace {

using std::chrono::seconds;

/// A condition that threads wait for.
class Signal {
 public:
  void Add(int n = 1) {
    std::lock_guard lock(mutex_);
    count_ += n;
    changed_.notify_all();
  }
  bool WaitFor(int n) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, seconds(30), [&] { return count_ >= n; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

TEST(TransferThread, WorkOfEachThreadRunsInItsOrderAndOnOneThread) {
  TransferThread thread;
  thread.Start();
  constexpr int kThreads = 4, kWorks = 2000;
  std::vector<int> next(kThreads, 0);  // the transfer thread's
  int wrong = 0;
  std::vector<std::thread> posters;
  for (int t = 0; t < kThreads; ++t) {
    posters.emplace_back([&, t] {
      for (int i = 0; i < kWorks; ++i) thread.Post([&, t, i] { wrong += next[static_cast<size_t>(t)]++ != i; });
    });
  }
  for (std::thread& poster : posters) poster.join();
  thread.Stop();
  EXPECT_EQ(wrong, 0);
  for (int n : next) EXPECT_EQ(n, kWorks) << "what was posted before Stop has run";
}

TEST(TransferThread, WorkMayPostWorkAndAfterStopNothingRuns) {
  TransferThread thread;
  Signal signal;
  thread.Post([&] { signal.Add(); });  // before Start: waits
  thread.Start();
  std::function<void()> again = [&] {
    signal.Add();
    thread.Post([&] { signal.Add(); });
  };
  thread.Post(again);
  EXPECT_TRUE(signal.WaitFor(3));
  thread.Stop();
  thread.Post([] { ADD_FAILURE() << "it was stopped"; });
}

/// It looks by itself once a second.
TEST(TransferThread, WhoPostsToASleepingThreadWakesIt) {
  constexpr int kPosts = 200;
  TransferThread thread;
  thread.Start();
  Signal signal;
  std::thread poster([&] {
    for (int i = 1; i <= kPosts && signal.WaitFor(i - 1); ++i) thread.Post([&] { signal.Add(); });
  });
  EXPECT_TRUE(signal.WaitFor(kPosts));
  thread.Stop();
  poster.join();
}

TEST(TransferThread, WhatATurnTellsGoesInOnePostInItsOrder) {
  TransferThread thread;
  TurnNews news;
  std::vector<int> heard;
  int posts = 0;
  thread.AtTurnEnd([&] {
    news.Tell([&](const auto& task) {
      ++posts;
      task();
    });
  });
  for (int i = 0; i < 3; ++i) {  // before Start: one turn's
    thread.Post([&, i] { news.Add([&, i] { heard.push_back(i); }); });
  }
  thread.Start();
  thread.Stop();
  EXPECT_EQ(posts, 1);
  EXPECT_EQ(heard, std::vector<int>({0, 1, 2}));
}

TEST(TransferBeat, OfAHundredTicksInASecondTenGoOn) {
  TransferBeat beat;
  TimePoint now{seconds(5)};
  int gone_on = 0;
  for (int tick = 0; tick < 100; ++tick, now += std::chrono::milliseconds(10)) gone_on += beat.Due(now);
  EXPECT_EQ(gone_on, 10);
  EXPECT_TRUE(beat.Due(now + seconds(3)));
}

/// One worker: a thread, a transport on it, what it heard.
class Side final : public TransportEvents {
 public:
  Side(bool shm, LandingShape shape) {
    transport = shm ? std::unique_ptr<Transport>(ShmTransport::Create({.landing = shape}, *this).value())
                    : std::unique_ptr<Transport>(TcpTransport::Create({.landing = shape}, *this).value());
    thread.Watch(transport.get());
    thread.Start();
  }
  void OnConnected(PeerNumber number) override { peer = number; }
  void OnMessage(PeerNumber from, std::string_view message) override {
    if (on_message) on_message(from, message);
    heard.Add();
  }
  void OnLost(PeerNumber, const absl::Status&) override { lost.Add(); }
  bool MayLand(PeerNumber, const LandingPlace&) override { return true; }
  std::unique_ptr<Transport> transport;
  std::function<void(PeerNumber, std::string_view)> on_message;  ///< set before anything comes
  PeerNumber peer = 0;
  Signal heard, lost;
  TransferThread thread;  ///< last: stops before the transport goes
};

class TwoWorkers : public ::testing::TestWithParam<bool> {};

TEST_P(TwoWorkers, SlotsAndAnswersCrossWhileOthersPost) {
  constexpr int kRounds = 300;
  constexpr size_t kBytes = 20000;
  Side decode(GetParam(), {1, kBytes});
  Side prefill(GetParam(), {});
  int wrong = 0, round = 0;
  decode.on_message = [&](PeerNumber from, std::string_view message) {  // decode's thread: look at the slot, answer
    const auto want = static_cast<std::byte>(message[0]);
    for (std::byte b : decode.transport->landing()) wrong += b != want;
    decode.transport->Send(from, "free", nullptr);
  };
  PeerNumber peer = 0;
  std::vector<std::byte> bytes(kBytes);
  std::function<void()> write = [&] {  // prefill's thread
    std::memset(bytes.data(), round, bytes.size());
    prefill.transport->Write(peer, {{1, 1, 0}, {0, static_cast<uint32_t>(round)}}, bytes,
                             [&](const absl::Status& status) {
                               ASSERT_TRUE(status.ok()) << status;
                               prefill.transport->Send(peer, std::string(1, static_cast<char>(round)), nullptr);
                             });
  };
  prefill.on_message = [&](PeerNumber, std::string_view) {
    if (++round < kRounds) write();
  };
  const std::string address = decode.transport->address();
  prefill.thread.Post([&, address] {
    peer = prefill.transport->Connect(address).value();
    write();
  });
  std::vector<std::thread> posters;
  Signal posted;
  for (int t = 0; t < 2; ++t) {
    posters.emplace_back([&] {
      for (int i = 0; i < 1000; ++i)
        decode.thread.Post([&] { posted.Add(); }), prefill.thread.Post([&] { posted.Add(); });
    });
  }
  EXPECT_TRUE(prefill.heard.WaitFor(kRounds));
  for (std::thread& poster : posters) poster.join();
  EXPECT_TRUE(posted.WaitFor(4000));
  decode.thread.Stop(), prefill.thread.Stop();
  EXPECT_EQ(wrong, 0);
}

TEST_P(TwoWorkers, AWorkerThatEndsInMidTransferIsHeardOf) {
  Side decode(GetParam(), {4, 1 << 20});
  auto prefill = std::make_unique<Side>(GetParam(), LandingShape{});
  std::vector<std::byte> bytes(1 << 20, std::byte{1});
  const std::string address = decode.transport->address();
  prefill->thread.Post([&, address] {
    const PeerNumber peer = prefill->transport->Connect(address).value();
    for (uint32_t i = 0; i < 64; ++i) {
      prefill->transport->Write(peer, {{1, 1, 0}, {i % 4, i}}, bytes, [](const absl::Status&) {});
    }
    prefill->transport->Send(peer, "now", nullptr);
  });
  EXPECT_TRUE(decode.heard.WaitFor(1));
  prefill.reset();
  EXPECT_TRUE(decode.lost.WaitFor(1));
}

INSTANTIATE_TEST_SUITE_P(Over, TwoWorkers, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "shm" : "tcp"; });

}  // namespace
}  // namespace baton::worker
