// A model whose dense layers are multiplied by a library (cuBLASLt, emulated) where that is faster: with
// --no-deterministic only, near the answers of Baton's own kernels, recorded and not, and all of its memory planned.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/model/decoder.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/runtime/emulated_cublas_lt.h"
#include "kernels/runtime/emulated_device.h"
#include "tests/engine/model/quantized_files.h"
#include "tests/engine/model/random_steps.h"

namespace baton::engine {
namespace {

class DeviceLibrary : public testing::TestWithParam<const char*> {
 protected:
  static kernels::CudaOpsConfig WithLibrary() {
    return {.deterministic = false, .cublas_lt = &gpu::EmulatedCublasLt()};
  }
  absl::StatusOr<DeviceModel> Load(const kernels::CudaOpsConfig& config, std::vector<int32_t> recorded_rows = {}) {
    ModelSource source = source_;
    source.recorded_rows = std::move(recorded_rows);
    return LoadOnDevice(source, limits_, config);
  }
  /// √(Σ (got − want)²) of √(Σ want²).
  static double Error(const std::vector<float>& got, const std::vector<float>& want) {
    double error = 0, size = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      error += std::pow(double{got[i]} - want[i], 2);
      size += std::pow(double{want[i]}, 2);
    }
    return std::sqrt(error / size);
  }

  const RandomLimits limits_;
  const ModelSource source_ = SourceWithin(std::string("tests/engine/model/goldens/") + GetParam(), limits_);
};

constexpr double kNear = 0.03;  ///< of sums in f32 over numbers in bf16, some layers deep

TEST_P(DeviceLibrary, MultipliesNearToACpuInEveryBatch) {
  auto library = Load(WithLibrary()), own = Load({.deterministic = false});
  auto cpu = LoadOn(kernels::MakeCpuOps({.threads = 1, .kv_dtype = DType::kBF16}).value(), source_, limits_);
  ASSERT_TRUE(library.ok() && own.ok() && cpu.ok()) << library.status() << own.status() << cpu.status();
  std::mt19937 random(31);
  bool differs = false;
  for (int i = 0; i < 12; ++i) {
    const RandomStep step = MakeStep(i % 4, limits_, library->model->config().vocab_size, random);
    const int64_t before = gpu::EmulatedLtCalls();
    const auto got = RunStep(*library, step);
    EXPECT_GT(gpu::EmulatedLtCalls(), before) << "step " << i;
    const auto mine = RunStep(*own, step), want = RunStep(*cpu, step);
    ASSERT_TRUE(got.ok() && mine.ok() && want.ok());
    EXPECT_LT(Error(got->logits, want->logits), kNear) << "step " << i;
    EXPECT_LT(Error(got->logits, mine->logits), kNear) << "step " << i;
    differs = differs || got->logits != mine->logits;
  }
  EXPECT_TRUE(differs) << "the emulated library adds in another order";
  EXPECT_EQ(gpu::EmulatedLtRefusals(), 0);
}

TEST_P(DeviceLibrary, IsNeverReachedWhenDeterministic) {
  const int64_t before = gpu::EmulatedLtCalls();
  auto with = Load({.cublas_lt = &gpu::EmulatedCublasLt()}, {1, 2, 4}), without = Load({}, {1, 2, 4});
  ASSERT_TRUE(with.ok() && without.ok());
  std::mt19937 random(32);
  for (int i = 0; i < 8; ++i) {
    const RandomStep step = MakeStep(i % 4, limits_, with->model->config().vocab_size, random);
    EXPECT_EQ(RunStep(*with, step)->logits, RunStep(*without, step)->logits);
  }
  EXPECT_EQ(gpu::EmulatedLtCalls(), before);
  EXPECT_EQ(with->ops->traits().library_bytes, 0);
  EXPECT_EQ(with->ops->traits().kernel_version, without->ops->traits().kernel_version);
  EXPECT_EQ(with->ops->about(), "");
}

TEST_P(DeviceLibrary, IsAPartOfARecordedStep) {
  auto recorded = Load(WithLibrary(), {4}), eager = Load(WithLibrary());
  ASSERT_TRUE(recorded.ok() && eager.ok());
  std::mt19937 random(33);
  int replayed = -1;  // the first of as many rows is launched, so that a library loads what it takes
  for (int i = 0; i < 60; ++i) {
    const RandomStep step = MakeStep(0, limits_, recorded->model->config().vocab_size, random);
    if (step.tokens.size() != 4 || !step.targets.empty()) continue;
    const int64_t before = gpu::EmulatedLtCalls(), replays = recorded->ops->device_work().replays;
    const auto got = RunStep(*recorded, step);
    EXPECT_EQ(recorded->ops->device_work().replays, replays + (replayed >= 0));
    EXPECT_TRUE(gpu::EmulatedLtCalls() == before || replayed <= 0) << "a replay asks the library for nothing";
    EXPECT_EQ(got->logits, RunStep(*eager, step)->logits) << "of as many rows the library adds in one order";
    ++replayed;
  }
  EXPECT_GE(replayed, 3);
}

// Few rows are found to be faster by the own kernels.
TEST_P(DeviceLibrary, MultipliesWhereItWasFasterOnly) {
  auto config = WithLibrary();
  config.library_wins = [](int rows, int, int) { return rows > 16; };
  auto some = Load(config);
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_THAT(some->ops->about(), testing::ContainsRegex("cuBLASLt [0-9]+: taken for [0-9]+ of [0-9]+ products"));
  std::mt19937 random(34);
  for (int i = 0; i < 12; ++i) {
    const RandomStep step = MakeStep(i % 4, limits_, some->model->config().vocab_size, random);
    const int64_t before = gpu::EmulatedLtCalls();
    ASSERT_TRUE(RunStep(*some, step).ok());
    EXPECT_EQ(gpu::EmulatedLtCalls() == before, step.tokens.size() <= 16) << step.tokens.size() << " rows";
  }
}

TEST_P(DeviceLibrary, TakesTheMemoryThatWasPlannedAndNoneAfterTheStart) {
  auto on = Load(WithLibrary());
  ASSERT_TRUE(on.ok()) << on.status();
  const auto planned = PlanRankMemory(source_, on->ops->traits(), limits_.rows);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_EQ(planned->memory, dynamic_cast<const Decoder&>(*on->model).memory());
  EXPECT_EQ(planned->memory.rooms.library, kernels::kLibraryBytes);
  std::mt19937 random(35);
  gpu::FailAllocation(0);
  for (int i = 0; i < 12; ++i)
    ASSERT_TRUE(RunStep(*on, MakeStep(i % 4, limits_, on->model->config().vocab_size, random)).ok());
  EXPECT_EQ(gpu::AllocationCount(), 0);
}

// Memory that only measuring takes is not needed: the own kernels multiply what could not be measured. The last that
// are taken are measuring's.
TEST_P(DeviceLibrary, EveryAllocationThatFailsIsAStatusWithBothNumbersOrAShapeThatIsNotMeasured) {
  const size_t free = gpu::CurrentDevice().free_bytes;
  const auto allocations = [&](const kernels::CudaOpsConfig& config) {
    gpu::FailAllocation(0);
    EXPECT_TRUE(Load(config).ok());
    return gpu::AllocationCount();
  };
  // Those that are there without it are model_device_memory_test's, but for some between which its own lie.
  constexpr int64_t kOthers = 7;
  const int64_t all = allocations(WithLibrary()), its_own = all - allocations({.deterministic = false});
  int unmeasured = 0;
  for (int64_t n = 1; n <= all; n += n < all - its_own ? kOthers : 1) {
    gpu::FailAllocation(n);
    {
      auto on = Load(WithLibrary());
      if (on.ok()) {
        ++unmeasured;
        EXPECT_THAT(on->ops->about(), testing::HasSubstr("no memory to measure 1 shapes of weights")) << n;
      } else {
        EXPECT_THAT(
            std::string(on.status().message()),
            testing::ContainsRegex("needs [0-9]+ (bytes of device memory, [0-9]+ of|(× [0-9]+ )?bytes of pinned)"));
      }
    }
    EXPECT_EQ(gpu::CurrentDevice().free_bytes, free) << n << " of " << all;
  }
  gpu::FailAllocation(0);
  EXPECT_GT(unmeasured, 3);
}

TEST_P(DeviceLibrary, AProductThatIsRefusedIsMadeByTheOwnKernels) {
  auto library = Load(WithLibrary()), own = Load({.deterministic = false});
  ASSERT_TRUE(library.ok() && own.ok());
  std::mt19937 random(36);
  for (int call = 1; call <= 6; ++call) {
    const RandomStep step = MakeStep(1, limits_, library->model->config().vocab_size, random);
    const int64_t refused = gpu::EmulatedLtRefusals();
    gpu::FailEmulatedLt(call, gpu::kLtNotSupported);
    EXPECT_LT(Error(RunStep(*library, step)->logits, RunStep(*own, step)->logits), kNear);
    EXPECT_EQ(gpu::EmulatedLtRefusals(), refused + 1);
  }
}

TEST_P(DeviceLibrary, WithoutAlgorithmsForManyRowsIsTakenForFewOnes) {
  gpu::SupportEmulatedLtUpTo(20);
  auto on = Load(WithLibrary());
  gpu::SupportEmulatedLtUpTo(0);
  ASSERT_TRUE(on.ok());
  std::mt19937 random(37);
  const RandomStep most = MakeStep(3, limits_, on->model->config().vocab_size, random);
  const int64_t before = gpu::EmulatedLtCalls();
  ASSERT_TRUE(Forward(*on, most).ok());
  on->ops->Sync();
  const int64_t few = gpu::EmulatedLtCalls() - before;
  EXPECT_LE(few, 4) << "of the last layer, which goes on with the rows that are wanted, and the head";
}

TEST_P(DeviceLibrary, AFailureOfTheGpuWithinItEndsTheProcessAsAny) {
  auto on = Load(WithLibrary());
  ASSERT_TRUE(on.ok());
  std::mt19937 random(38);
  const RandomStep step = MakeStep(1, limits_, on->model->config().vocab_size, random);
  constexpr int kExecutionFailed = 13;
  EXPECT_EXIT(
      {
        gpu::FailEmulatedLt(2, kExecutionFailed);
        static_cast<void>(RunStep(*on, step));
      },
      testing::ExitedWithCode(8), "the GPU failed: cuBLASLt: an error");
}

// A layer is qkv, o, gate and up, and down; the head is one more. Those of qwen2 have a bias.
TEST_P(DeviceLibrary, MultipliesEveryLinearLayer) {
  auto on = Load(WithLibrary());
  ASSERT_TRUE(on.ok());
  std::mt19937 random(39);
  const RandomStep most = MakeStep(3, limits_, on->model->config().vocab_size, random);
  const int64_t before = gpu::EmulatedLtCalls();
  ASSERT_TRUE(Forward(*on, most).ok());
  on->ops->Sync();
  EXPECT_EQ(gpu::EmulatedLtCalls() - before, 4 * on->model->config().num_layers + 1);
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceLibrary, testing::Values("llama3", "qwen2"),
                         [](const auto& info) { return std::string(info.param); });

// Layers whose weights and inputs are e4m3. An input between two codes may become either of them.
class DeviceLibraryOfE4m3 : public testing::TestWithParam<CodesCase> {
 protected:
  const QuantizedModel model_{GetParam()};
};

TEST_P(DeviceLibraryOfE4m3, MultipliesThemWithinTheMemoryThatIsPlanned) {
  for (const int width : {1, 4}) {
    const RandomLimits limits;
    ModelSource source = SourceWithin(model_.codes(), limits);
    source.dummy_weights = false;
    source.place = RankPlace::Of(0, 1, 1, width);
    auto library = LoadOnDevice(source, limits, {.deterministic = false, .cublas_lt = &gpu::EmulatedCublasLt()}),
         own = LoadOnDevice(source, limits, {.deterministic = false});
    ASSERT_TRUE(library.ok() && own.ok()) << library.status() << own.status();
    const auto planned = PlanRankMemory(source, library->ops->traits(), limits.rows);
    ASSERT_TRUE(planned.ok()) << planned.status();
    EXPECT_EQ(planned->memory, dynamic_cast<const Decoder&>(*library->model).memory()) << "width " << width;
    std::mt19937 random(40);
    const RandomStep most = MakeStep(3, limits, library->model->config().vocab_size, random);
    const int64_t before = gpu::EmulatedLtCalls();
    const auto got = RunStep(*library, most), want = RunStep(*own, most);
    ASSERT_TRUE(got.ok() && want.ok());
    // Of blocks a layer's rows go by fours, and inputs that are cut have other groups.
    EXPECT_GE(gpu::EmulatedLtCalls() - before, 4) << library->ops->about();
    double error = 0, size = 0;
    for (size_t i = 0; i < want->logits.size(); ++i) {
      error += std::pow(double{got->logits[i]} - want->logits[i], 2);
      size += std::pow(double{want->logits[i]}, 2);
    }
    EXPECT_LT(std::sqrt(error / size), 0.3) << "width " << width;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, DeviceLibraryOfE4m3,
                         testing::Values(kBlocksCase, kRoundedTensorCase, kRoundedFixedCase),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace baton::engine
