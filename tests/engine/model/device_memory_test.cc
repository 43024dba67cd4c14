// The memory of a GPU that a model computes on: all of it is taken at the start, and too little of it is a status.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/model/decoder.h"
#include "kernels/runtime/emulated_device.h"
#include "tests/engine/model/random_steps.h"

namespace baton::engine {
namespace {

constexpr const char* kPlannedModels = "tests/engine/model/goldens/";

class DeviceMemory : public testing::TestWithParam<const char*> {
 protected:
  const RandomLimits limits_;
  const ModelSource source_ = SourceWithin(std::string(kPlannedModels) + GetParam(), limits_);
};

TEST_P(DeviceMemory, NoStepAllocatesAfterTheStart) {
  auto on = LoadOnDevice(source_, limits_, {});
  ASSERT_TRUE(on.ok()) << on.status();
  std::mt19937 random(11);
  const int vocab = on->model->config().vocab_size;
  gpu::FailAllocation(0);
  for (int i = 0; i < 30; ++i) {  // the largest first
    const int kind = i < 4 ? 3 - i : i % 8 == 0 ? 1 : 0;
    ASSERT_TRUE(RunStep(*on, MakeStep(kind, limits_, vocab, random)).ok());
    ASSERT_EQ(gpu::AllocationCount(), 0) << "step " << i << ", kind " << kind;
  }
}

// Work that does not fit is done in several launches: partial results of attention, rows to sample.
TEST_P(DeviceMemory, ADeviceWithLittleRoomGivesTheSameBits) {
  auto roomy = LoadOnDevice(source_, limits_, {}), narrow = LoadOnDevice(source_, limits_, {.work_bytes = 1});
  ASSERT_TRUE(roomy.ok() && narrow.ok()) << roomy.status() << narrow.status();
  std::mt19937 random(12);
  const int vocab = roomy->model->config().vocab_size;
  gpu::FailAllocation(0);
  for (int i = 0; i < 12; ++i) {
    const RandomStep step = MakeStep(i % 4, limits_, vocab, random);
    const auto want = RunStep(*roomy, step), got = RunStep(*narrow, step);
    ASSERT_TRUE(want.ok() && got.ok());
    EXPECT_EQ(got->logits, want->logits) << "step " << i;
    ASSERT_EQ(got->rows.size(), want->rows.size());
    for (size_t r = 0; r < want->rows.size(); ++r) {
      EXPECT_EQ(got->rows[r].token, want->rows[r].token) << "step " << i << ", row " << r;
      EXPECT_EQ(got->rows[r].chosen.logprob, want->rows[r].chosen.logprob) << "step " << i << ", row " << r;
      EXPECT_EQ(got->rows[r].top.size(), want->rows[r].top.size());
    }
  }
  EXPECT_EQ(gpu::AllocationCount(), 0);
}

TEST_P(DeviceMemory, EveryAllocationThatFailsAtTheStartIsAStatusWithBothNumbers) {
  const size_t free = gpu::CurrentDevice().free_bytes;
  gpu::FailAllocation(0);
  ASSERT_TRUE(LoadOnDevice(source_, limits_, {}).ok());
  const int64_t all = gpu::AllocationCount();
  for (int64_t n = 1; n <= all; ++n) {
    gpu::FailAllocation(n);
    const absl::Status status = LoadOnDevice(source_, limits_, {}).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << n << " of " << all << ": " << status;
    EXPECT_THAT(std::string(status.message()),
                testing::ContainsRegex("needs [0-9]+ (bytes of device memory, [0-9]+ of|(× [0-9]+ )?bytes of pinned)"));
    EXPECT_EQ(gpu::CurrentDevice().free_bytes, free) << n << " of " << all;
  }
  gpu::FailAllocation(0);
}

TEST_P(DeviceMemory, EveryContextStreamAndEventThatIsNotMadeAtTheStartIsAStatus) {
  const size_t free = gpu::CurrentDevice().free_bytes;
  gpu::RefuseMaking(0);
  ASSERT_TRUE(LoadOnDevice(source_, limits_, {}).ok());
  const int64_t all = gpu::MakingCount();
  for (int64_t n = 1; n <= all; ++n) {
    gpu::RefuseMaking(n);
    const absl::Status status = LoadOnDevice(source_, limits_, {}).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << n << " of " << all << ": " << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("cuda:0 does not make ")) << n << " of " << all;
    EXPECT_EQ(gpu::CurrentDevice().free_bytes, free) << n << " of " << all;
  }
  gpu::RefuseMaking(0);
}

// By kind, and together what the device has less of; steps change nothing of it.
TEST_P(DeviceMemory, IsWhatWasPlannedOfEveryKind) {
  for (const kernels::CudaOpsConfig& config :
       {kernels::CudaOpsConfig{}, kernels::CudaOpsConfig{.kv_dtype = DType::kF8E4M3, .work_bytes = 100000}}) {
    const auto free = static_cast<int64_t>(gpu::CurrentDevice().free_bytes);
    auto on = LoadOnDevice(source_, limits_, config);
    ASSERT_TRUE(on.ok()) << on.status();
    const auto planned = PlanRankMemory(source_, on->ops->traits(), limits_.rows);
    ASSERT_TRUE(planned.ok()) << planned.status();
    const auto& decoder = dynamic_cast<const Decoder&>(*on->model);
    EXPECT_EQ(planned->memory, decoder.memory());
    for (const int64_t bytes : {planned->memory.rooms.inputs, planned->memory.rooms.partials,
                                planned->memory.rooms.rotary, planned->memory.rooms.sampling})
      EXPECT_GT(bytes, 0);
    const int64_t taken = free - on->ops->device_memory()->free_bytes;
    const int64_t counted = planned->memory.Total() + on->memory->bytes();
    EXPECT_NEAR(static_cast<double>(taken) / static_cast<double>(counted), 1, 0.01) << taken << " for " << counted;
    std::mt19937 random(13);
    ASSERT_TRUE(RunStep(*on, MakeStep(3, limits_, decoder.config().vocab_size, random)).ok());
    EXPECT_EQ(planned->memory, decoder.memory());
  }
}

// What does not fit is refused before anything is loaded, the working memory of steps with it.
TEST_P(DeviceMemory, TooLittleForTheStepsIsRefusedAtOnceWithBothNumbers) {
  auto ops = kernels::MakeCudaOps({}).value();
  const int64_t need = PlanRankMemory(source_, ops->traits(), limits_.rows)->memory.Total() - ops->rooms().Total();
  ModelSource source = source_;
  source.memory_limit_bytes = need - 1;
  gpu::FailAllocation(0);
  const absl::Status status = LoadModel(source, *ops, limits_.rows, nullptr).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  for (const std::string& part :
       {StrCat("needs ", need, " bytes"), StrCat(need - 1, " bytes"), std::string("working memory of steps")})
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(part));
  EXPECT_EQ(gpu::AllocationCount(), 0);
  source.memory_limit_bytes = need;
  EXPECT_TRUE(LoadModel(source, *ops, limits_.rows, nullptr).ok());
}

// Weights come through the host's memory, which is another's.
TEST_P(DeviceMemory, WhatLoadingNeedsIsTheHosts) {
  auto ops = kernels::MakeCudaOps({}).value();
  const auto planned = PlanRankMemory(source_, ops->traits(), limits_.rows);
  const int64_t host = std::max(planned->scratch_bytes, planned->pinned_bytes);
  ModelSource source = source_;
  source.memory_limit_bytes = planned->memory.Total();
  source.host_limit_bytes = host;
  EXPECT_TRUE(LoadModel(source, *ops, limits_.rows, nullptr).ok());
  source.host_limit_bytes = host - 1;
  const absl::Status status = LoadModel(source, *ops, limits_.rows, nullptr).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  for (const std::string& part :
       {StrCat("needs ", host, " bytes"), std::string("of the host's memory"), StrCat(host - 1, " bytes")})
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(part));
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceMemory, testing::Values("llama3", "gemma3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace baton::engine
