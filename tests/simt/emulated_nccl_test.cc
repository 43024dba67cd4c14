// The emulated NCCL is as unkind as the library may be: a program of two streams per rank is right under every
// schedule, and each bug that is planted into it is noticed under some.
#include "kernels/runtime/emulated_nccl.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/runtime/emulated_device.h"
#include "kernels/runtime/runtime.h"

namespace baton::gpu {
namespace {

constexpr uint64_t kSeeds = 24;
const NcclApi& nccl = EmulatedNccl();

/// What a call that does not block came to.
int Settle(NcclComm* comm, int result) {
  while (result == kNcclInProgress) {
    std::this_thread::yield();
    nccl.async_error(comm, &result);
  }
  return result;
}

/// A rank's end of a group, on the GPU of its number.
struct Rank {
  int rank = 0, ranks = 0;
  NcclComm* comm = nullptr;
};
/// `work` on a thread of each rank, whose streams drift if `drifts`. "": none found anything wrong.
using Work = std::function<std::string(Rank&)>;
std::string OnRanks(int ranks, uint64_t seed, const Work& work, bool drifts = true) {
  SeedEmulatedNccl(seed);
  NcclId id;
  EXPECT_EQ(nccl.get_unique_id(&id), kNcclSuccess);
  std::vector<std::string> found(static_cast<size_t>(ranks));
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r] {
        EXPECT_EQ(UseDevice(r), "");
        Rank rank{r, ranks};
        NcclConfig config;
        EXPECT_EQ(Settle(rank.comm, nccl.init_rank(&rank.comm, ranks, id, r, &config)), kNcclSuccess);
        std::unique_ptr<StreamsDrift> drift;
        if (drifts) drift = std::make_unique<StreamsDrift>(seed * 977 + static_cast<uint64_t>(r));
        found[static_cast<size_t>(r)] = work(rank);
      });
    }
  }
  SeedEmulatedNccl(1);
  for (const std::string& each : found) {
    if (!each.empty()) return each;
  }
  return {};
}

enum class Bug { kNone, kNoEventBefore, kNoEventAfter, kSendBufferReused, kNotSettled };

/// Rounds of: a stream computes what is sent, another gathers it, the first uses what came.
class TwoStreams {
 public:
  TwoStreams(Rank& rank, Bug bug) : rank_(rank), bug_(bug) {}

  std::string Run() {
    Produce(0);
    for (int round = 0; round < kRounds; ++round) {
      if (bug_ != Bug::kNoEventBefore) links_.Wait(produced_);
      const int result = nccl.all_gather(mine_.data(), all_.data(), kBytes, kNcclBytes, rank_.comm, &links_);
      if (bug_ != Bug::kNotSettled && Settle(rank_.comm, result) != kNcclSuccess) return "a call failed";
      links_.Record(gathered_);
      if (bug_ == Bug::kSendBufferReused) Produce(round + 1);
      if (bug_ != Bug::kNoEventAfter) computes_.Wait(gathered_);
      computes_.CopyAsync(Used(round), all_.data(), all_.bytes());
      if (bug_ != Bug::kSendBufferReused) Produce(round + 1);
    }
    computes_.Synchronize();
    const std::string wrong = Wrong();
    links_.Synchronize();
    int error = 0;
    nccl.async_error(rank_.comm, &error);
    return error == kNcclSuccess || error == kNcclInProgress ? wrong : nccl.error_text(error);
  }

 private:
  static constexpr int kRounds = 4;
  static constexpr size_t kBytes = 4096;
  static std::vector<char> Sent(int rank, int round) {
    return std::vector<char>(kBytes, static_cast<char>(1 + rank * kRounds + round));
  }
  void Produce(int round) {
    computes_.Upload(mine_.data(), Sent(rank_.rank, round).data(), kBytes);
    computes_.Record(produced_);
  }
  char* Used(int round) { return static_cast<char*>(used_.data()) + static_cast<size_t>(round) * all_.bytes(); }
  std::string Wrong() {
    for (int round = 0; round < kRounds; ++round) {
      for (int r = 0; r < rank_.ranks; ++r) {
        if (std::memcmp(Used(round) + static_cast<size_t>(r) * kBytes, Sent(r, round).data(), kBytes) != 0)
          return "round " + std::to_string(round) + ": not what rank " + std::to_string(r) + " sent";
      }
    }
    return {};
  }

  Rank& rank_;
  const Bug bug_;
  Memory mine_{kBytes}, all_{kBytes * static_cast<size_t>(rank_.ranks)};
  Memory used_{all_.bytes() * kRounds, MemoryKind::kShared};
  Event produced_, gathered_;
  Stream computes_, links_;
};

std::string RunWith(Bug bug, uint64_t seed) {
  const int ranks = bug == Bug::kNotSettled ? 1 : 3;  // others would wait for a call that never comes
  return OnRanks(ranks, seed, [bug](Rank& rank) { return TwoStreams(rank, bug).Run(); });
}

TEST(EmulatedNccl, ARightProgramIsRightUnderEverySchedule) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) EXPECT_EQ(RunWith(Bug::kNone, seed), "") << seed;
}

TEST(EmulatedNccl, EachPlantedBugIsNoticedUnderSomeSchedule) {
  const std::pair<Bug, const char*> bugs[] = {{Bug::kNoEventBefore, "no event before the call"},
                                              {Bug::kNoEventAfter, "what came is used before the call is complete"},
                                              {Bug::kSendBufferReused, "what is sent is overwritten too early"},
                                              {Bug::kNotSettled, "a call in progress is not waited for"}};
  for (const auto& [bug, name] : bugs) {
    uint64_t noticed = 0;
    std::string how;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      const std::string wrong = RunWith(bug, seed);
      if (wrong.empty()) continue;
      ++noticed;
      how = wrong;
    }
    std::printf("  %-50s %2d of %d schedules: %s\n", name, static_cast<int>(noticed), static_cast<int>(kSeeds),
                how.c_str());
    EXPECT_GT(noticed, 0u) << name;
  }
}

/// Every rank sends to the next, and takes from the one before it. One that `hangs` is aborted.
std::string InACircle(uint64_t seed, bool grouped, bool hangs = false) {
  std::vector<NcclComm*> comms(2);
  std::jthread watch;
  const auto abort_late = [&] {  // by then it would have come
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    for (NcclComm* comm : comms) nccl.abort(comm);
  };
  std::atomic<int> ready = 0;
  const std::string found = OnRanks(
      2, seed,
      [&](Rank& rank) -> std::string {
        comms[static_cast<size_t>(rank.rank)] = rank.comm;
        Memory out(64, MemoryKind::kShared), in(64, MemoryKind::kShared);
        std::memset(out.data(), 7, 64);
        Stream stream;
        const int other = 1 - rank.rank;
        if (grouped) nccl.group_start();
        const int sent = nccl.send(out.data(), 64, kNcclBytes, other, rank.comm, &stream);
        if (!grouped) Settle(rank.comm, sent);
        const int took = nccl.recv(in.data(), 64, kNcclBytes, other, rank.comm, &stream);
        Settle(rank.comm, grouped ? nccl.group_end() : took);
        if (++ready == 2 && hangs) watch = std::jthread(abort_late);
        stream.Synchronize();
        return std::memcmp(in.data(), out.data(), 64) == 0 ? "" : "nothing came";
      },
      false);
  return found;
}

TEST(EmulatedNccl, TwoSendsThatMeetOutsideOfAGroupHangUnderHalfOfTheSchedules) {
  for (const uint64_t seed : {1u, 2u}) {
    const bool hangs = seed == 1;
    EXPECT_EQ(InACircle(seed, true), "");
    EXPECT_EQ(InACircle(seed, false, hangs), hangs ? "nothing came" : "");
  }
}

TEST(EmulatedNccl, OfARankThatFailsSomeHearAndTheRestWaitUntilTheyAreAborted) {
  constexpr int kLooks = 2000;
  FailInEmulatedNccl(1, 1);
  int heard = 0, waited = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    std::atomic<bool> failed = false;
    const auto gather_twice = [](Rank& rank, Stream& stream, const Memory& mine, const Memory& all) {
      for (int call = 0; call < 2; ++call)
        Settle(rank.comm, nccl.all_gather(mine.data(), all.data(), 64, kNcclBytes, rank.comm, &stream));
    };
    const std::string found = OnRanks(2, seed, [&](Rank& rank) -> std::string {
      Memory mine(64), all(128);
      Stream stream, other;
      gather_twice(rank, stream, mine, all);
      int error = kNcclSuccess;
      if (rank.rank == 1) {
        stream.Synchronize();
        nccl.async_error(rank.comm, &error);
        failed = true;
        return error == kNcclInternalError ? "" : "it has not failed";
      }
      for (int looks = 0; looks < kLooks && error == kNcclSuccess; looks += failed ? 1 : 0) {
        other.FillAsync(mine.data(), 0, 64);  // meanwhile the first stream may go on
        nccl.async_error(rank.comm, &error);
      }
      ++(error == kNcclRemoteError ? heard : waited);
      nccl.abort(rank.comm);
      return stream.Synchronize();
    });
    EXPECT_EQ(found, "");
  }
  FailInEmulatedNccl(-1, 0);
  EXPECT_GT(heard, 0);
  EXPECT_GT(waited, 0);
}

/// A graph with a gather of one rank in it.
Graph RecordedGather(NcclComm* comm, Stream& stream, const Memory& memory) {
  const auto gather = [&] {
    EXPECT_EQ(Settle(comm, nccl.all_gather(memory.data(), memory.data(), 64, kNcclBytes, comm, &stream)), kNcclSuccess);
  };
  gather();
  EXPECT_EQ(stream.Synchronize(), "");
  stream.BeginCapture();
  gather();
  return stream.EndCapture();
}

TEST(EmulatedNccl, AnAbortWaitsForGraphsThatHaveTheCommunicator) {
  EXPECT_EQ(OnRanks(1, 1,
                    [](Rank& rank) {
                      Memory memory(64);
                      Stream stream;
                      auto graph = std::make_unique<Graph>(RecordedGather(rank.comm, stream, memory));
                      stream.Replay(*graph);
                      EXPECT_EQ(stream.Synchronize(), "");
                      std::jthread aborts([&] { nccl.abort(rank.comm); });
                      while (AbortingInEmulatedNccl() == 0) std::this_thread::yield();
                      graph.reset();
                      aborts.join();
                      EXPECT_EQ(AbortingInEmulatedNccl(), 0);
                      return std::string();
                    }),
            "");
}

TEST(EmulatedNccl, ACallThatWasNeverMadeOutsideFailsInACapture) {
  EXPECT_EQ(OnRanks(1, 1,
                    [](Rank& rank) -> std::string {
                      Memory memory(64);
                      Stream stream;
                      stream.BeginCapture();
                      const int result =
                          nccl.all_gather(memory.data(), memory.data(), 64, kNcclBytes, rank.comm, &stream);
                      stream.DropCapture();
                      return result == kNcclUnhandledCudaError ? "" : "it did not fail";
                    }),
            "");
}

TEST(EmulatedNcclDeathTest, ACaptureIsEndedInWhichACallFailed) {
  EXPECT_EQ(OnRanks(1, 1,
                    [](Rank& rank) {
                      Memory memory(64);
                      Stream stream;
                      RefuseInEmulatedNccl(0, true);
                      stream.BeginCapture();
                      EXPECT_EQ(nccl.all_gather(memory.data(), memory.data(), 64, kNcclBytes, rank.comm, &stream),
                                kNcclUnhandledCudaError);
                      EXPECT_STREQ(nccl.last_error(rank.comm), "Cuda failure 2 'out of memory'");
                      EXPECT_DEATH(stream.EndCapture(), "a call failed");
                      stream.DropCapture();
                      return stream.Synchronize();
                    }),
            "");
}

TEST(EmulatedNcclDeathTest, ACommunicatorIsUsedAfterItsAbort) {
  NcclId id;
  ASSERT_EQ(nccl.get_unique_id(&id), kNcclSuccess);
  NcclComm* comm = nullptr;
  NcclConfig config;
  ASSERT_EQ(Settle(comm, nccl.init_rank(&comm, 1, id, 0, &config)), kNcclSuccess);
  ASSERT_EQ(nccl.abort(comm), kNcclSuccess);
  EXPECT_DEATH(nccl.abort(comm), "an aborted communicator");
}

}  // namespace
}  // namespace baton::gpu
