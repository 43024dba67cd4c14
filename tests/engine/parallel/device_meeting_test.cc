// Ranks on emulated GPUs that meet while one of them is short of memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <string>
#include <thread>
#include <vector>

#include "engine/parallel/local_communicator.h"
#include "kernels/cuda/host/cuda_ops.h"
#include "kernels/runtime/emulated_device.h"

namespace baton::engine {
namespace {

// The rank that is short of memory says how much it needs; the other hears of it, and waits for nobody.
TEST(GpuRanksMeet, EveryAllocationThatFailsWhileTheyMeetIsAStatusOfBothOrSumsByNccl) {
  constexpr int kSize = 2;
  const auto meet = [](int64_t fails) {
    std::vector<std::unique_ptr<Communicator>> hosts = MakeLocalGroup(kSize);
    std::vector<absl::StatusOr<std::string>> said(kSize);
    std::barrier ready(kSize, [&]() noexcept { gpu::FailAllocation(fails); });
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kSize; ++rank) {
      threads.emplace_back([&, rank] {
        const auto ops = kernels::MakeCudaOps({.device = rank}).value();
        Communicator& host = *hosts[static_cast<size_t>(rank)];
        ready.arrive_and_wait();
        const auto group = ops->JoinGroup({rank, kSize, [&](std::span<const std::byte> mine, std::span<std::byte> all) {
                                             return host.AllGather(mine, all);
                                           }});
        if (group.ok())
          said[static_cast<size_t>(rank)] = (*group)->about();
        else
          said[static_cast<size_t>(rank)] = group.status();
        host.TreeAllReduce({}).IgnoreError();  // none leaves before all are done
      });
    }
    threads.clear();
    return said;
  };
  for (const auto& each : meet(0)) ASSERT_TRUE(each.ok()) << each.status();
  const int64_t all = gpu::AllocationCount();
  ASSERT_EQ(all, 10) << "of each rank what is gathered, and landings, epochs, a stop word and a trial";
  int refused = 0;
  for (int64_t n = 1; n <= all; ++n) {
    const auto said = meet(n);
    ASSERT_EQ(said[0].ok(), said[1].ok()) << n;
    if (said[0].ok()) {
      EXPECT_THAT(*said[0], ::testing::HasSubstr("by NCCL, since those over the GPUs' own links cannot be: rank "))
          << n;
      continue;
    }
    ++refused;
    const auto text = [&](size_t rank) { return std::string(said[rank].status().message()); };
    EXPECT_TRUE(absl::IsResourceExhausted(said[0].status()) && absl::IsResourceExhausted(said[1].status())) << n;
    EXPECT_THAT((std::vector{text(0), text(1)}),
                ::testing::UnorderedElementsAre(
                    ::testing::ContainsRegex("sums over ranks needs [0-9]+ bytes of device memory, [0-9]+ of"),
                    ::testing::ContainsRegex("the GPU of rank [01] has too little memory for sums over ranks")))
        << n;
  }
  gpu::FailAllocation(0);
  EXPECT_EQ(refused, 2) << "what is gathered";
}

}  // namespace
}  // namespace baton::engine
