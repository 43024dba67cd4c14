// Kernels on the emulator under sanitizers: ThreadSanitizer sees races on shared memory that give the right answer,
// AddressSanitizer and UndefinedBehaviorSanitizer see what the emulator's own checks do not.
#include <gtest/gtest.h>

#include "tests/simt/grids.h"
#include "tests/simt/planted_kernels.h"

#if defined(__has_feature)
#define BATON_HAS_SANITIZER(name) __has_feature(name)
#else
#define BATON_HAS_SANITIZER(name) 0
#endif

#if BATON_HAS_SANITIZER(thread_sanitizer)
// The first report ends the process: a child of EXPECT_EXIT where a race is planted, else the test.
extern "C" const char* __tsan_default_options() { return "halt_on_error=1:exitcode=66:symbolize=0"; }
#endif

namespace baton::simt_test {
namespace {

[[maybe_unused]] PX_KERNEL void ReadLocalArray(float* out, int index) {
  volatile float local[8];
  for (int i = 0; i < 8; ++i) local[i] = static_cast<float>(i);
  px::Store(out + px::ThreadX(), local[index]);
}
PX_KERNEL void ReadGlobalArray(const float* in, float* out, int index) {
  px::Store(out + px::ThreadX(), px::Load(in + index));
}
[[maybe_unused]] PX_KERNEL void ShiftBy(float* out, int bits) {
  px::Store(out + px::ThreadX(), static_cast<float>(1 << bits));
}

[[maybe_unused]] std::string RunOne(void (*kernel)(float*, int), int argument) {
  Array<float> out(32);
  return RunKernel(simt::Policy{}, {.grid = {1}, .block = {32}}, kernel, out.data(), argument);
}
[[maybe_unused]] std::string ReadAround(int index) {
  Array<float> in(std::vector<float>(33, 1.0f)), out(32);
  return RunKernel(simt::Policy{}, {.grid = {1}, .block = {32}}, &ReadGlobalArray, in.data(), out.data(), index);
}

TEST(SimtUnderAsan, AKernelsLocalArraysAndDeviceMemoryHaveEnds) {
#if BATON_HAS_SANITIZER(address_sanitizer)
  EXPECT_EQ(RunOne(&ReadLocalArray, 7), "");
  EXPECT_DEATH(RunOne(&ReadLocalArray, 8), "stack-buffer-overflow|index 8 out of bounds");
  EXPECT_EQ(ReadAround(32), "");
  EXPECT_DEATH(ReadAround(34), "use-after-poison");
  EXPECT_DEATH(ReadAround(-1), "use-after-poison");
#else
  GTEST_SKIP() << "not built with AddressSanitizer: scripts/sanitize.sh asan simt_sanitizer_test";
#endif
}

TEST(SimtUnderAsan, AShiftByTooManyBitsEndsTheProcess) {
#if BATON_HAS_SANITIZER(undefined_behavior_sanitizer)
  EXPECT_EQ(RunOne(&ShiftBy, 5), "");
  EXPECT_DEATH(RunOne(&ShiftBy, 40), "shift exponent 40 is too large");
#else
  GTEST_SKIP() << "not built with UndefinedBehaviorSanitizer: scripts/sanitize.sh asan simt_sanitizer_test";
#endif
}

template <Bug kBug>
void RunSum(const simt::Policy& policy) {
  Array<float> in(std::vector<float>(600, 1.0f)), out(2);
  RunKernel(policy, {.grid = {1}, .block = {kSumThreads}, .shared_bytes = sizeof(SumShared)}, &SumRows<kBug>, in.data(),
            out.data(), 2, 300);
}
template <Bug kBug>
void RunPipeline(const simt::Policy& policy) {
  Array<float> in(std::vector<float>(5 * kPipeRows * kPipeCols, 1.0f)), out(kPipeCols);
  RunKernel(policy, {.grid = {1}, .block = {kPipeThreads}, .shared_bytes = sizeof(PipeShared)},
            &PipelinedColumnSum<kBug>, in.data(), out.data(), 5 * kPipeRows, 5);
}

template <Bug kBug>
void RunTranspose(const simt::Policy& policy) {
  Array<float> in(std::vector<float>(1024, 1.0f)), out(1024);
  RunKernel(policy, {.grid = {1}, .block = {32}, .shared_bytes = sizeof(TransposeShared)}, &Transpose<kBug>, in.data(),
            out.data());
}
template <Bug kBug>
void RunGemm(const simt::Policy& policy) {
  constexpr int kDepth = 7 * kGemmK;
  const std::vector<px::bf16> ones(kGemmM * kDepth, px::bf16{0x3F80});
  Array<px::bf16> a(ones), b(ones);
  Array<float> c(kGemmM * kGemmN);
  const px::TensorMap2D ma{a.data(), kDepth, kGemmM, kDepth, kGemmM}, mb{b.data(), kDepth, kGemmN, kDepth, kGemmN};
  RunKernel(policy, {.grid = {1}, .block = {kGemmThreads}, .shared_bytes = sizeof(GemmShared)}, &TmaGemm<kBug>, ma, mb,
            c.data(), kDepth);
}

TEST(SimtUnderTsan, AMissingBarrierIsARaceWhateverTheAnswer) {
#if BATON_HAS_SANITIZER(thread_sanitizer)
  for (const simt::Policy& policy : simt::AllPolicies()) {
    SCOPED_TRACE(simt::PolicyName(policy));
    RunSum<Bug::kNone>(policy);
    RunPipeline<Bug::kNone>(policy);
    auto race = testing::ExitedWithCode(66);
    EXPECT_EXIT(RunSum<Bug::kNoBarrierBeforeRead>(policy), race, "data race");
    EXPECT_EXIT(RunSum<Bug::kNoBarrierBeforeReuse>(policy), race, "data race");
    EXPECT_EXIT(RunPipeline<Bug::kNoBarrierAfterCopy>(policy), race, "data race");
    EXPECT_EXIT(RunPipeline<Bug::kNoBarrierBeforeStage>(policy), race, "data race");
  }
#else
  RunSum<Bug::kNone>({}), RunPipeline<Bug::kNone>({});
  GTEST_SKIP() << "not built with ThreadSanitizer: scripts/sanitize.sh tsan simt_sanitizer_test";
#endif
}

/// All ones: no order of a warp's lanes, of copies or of products gives another answer.
TEST(SimtUnderTsan, WhatOnlyMeetsInAVoteOrRunsBesideTheThreadsIsARaceToo) {
#if BATON_HAS_SANITIZER(thread_sanitizer)
  for (const simt::Policy& policy : simt::AllPolicies()) {
    SCOPED_TRACE(simt::PolicyName(policy));
    RunTranspose<Bug::kNone>(policy);
    RunGemm<Bug::kNone>(policy);
    auto race = testing::ExitedWithCode(66);
    EXPECT_EXIT(RunTranspose<Bug::kNoWarpSync>(policy), race, "data race");
    EXPECT_EXIT(RunTranspose<Bug::kWarpSyncMaskTooSmall>(policy), race, "data race");
    EXPECT_EXIT(RunGemm<Bug::kNoFullWait>(policy), race, "data race");
    EXPECT_EXIT(RunGemm<Bug::kReleasedInFlight>(policy), race, "data race");
  }
#else
  RunTranspose<Bug::kNone>({}), RunGemm<Bug::kNone>({});
  GTEST_SKIP() << "not built with ThreadSanitizer: scripts/sanitize.sh tsan simt_sanitizer_test";
#endif
}

}  // namespace
}  // namespace baton::simt_test
