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
namespace {
int reports = 0;
}  // namespace
// Called by the sanitizer for every report. The reports themselves are wanted here, so they do not fail the program.
extern "C" void __tsan_on_report(void*) { ++reports; }
extern "C" const char* __tsan_default_options() {
  return "exitcode=0:suppress_equal_stacks=0:suppress_equal_addresses=0";
}
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

[[maybe_unused]] std::string Run(void (*kernel)(float*, int), int argument) {
  Array<float> out(32);
  return RunKernel(simt::Policy{}, {.grid = {1}, .block = {32}}, kernel, out.data(), argument);
}
[[maybe_unused]] std::string ReadAround(int index) {
  Array<float> in(std::vector<float>(33, 1.0f)), out(32);
  return RunKernel(simt::Policy{}, {.grid = {1}, .block = {32}}, &ReadGlobalArray, in.data(), out.data(), index);
}

TEST(SimtUnderAsan, AKernelsLocalArraysAndDeviceMemoryHaveEnds) {
#if BATON_HAS_SANITIZER(address_sanitizer)
  EXPECT_EQ(Run(&ReadLocalArray, 7), "");
  EXPECT_DEATH(Run(&ReadLocalArray, 8), "stack-buffer-overflow");
  EXPECT_EQ(ReadAround(32), "");
  EXPECT_DEATH(ReadAround(34), "use-after-poison");
  EXPECT_DEATH(ReadAround(-1), "use-after-poison");
#else
  GTEST_SKIP() << "not built with AddressSanitizer: scripts/sanitize.sh asan simt_sanitizer_test";
#endif
}

TEST(SimtUnderAsan, AShiftByTooManyBitsEndsTheProcess) {
#if BATON_HAS_SANITIZER(undefined_behavior_sanitizer)
  EXPECT_EQ(Run(&ShiftBy, 5), "");
  EXPECT_DEATH(Run(&ShiftBy, 40), "shift exponent 40 is too large");
#else
  GTEST_SKIP() << "not built with UndefinedBehaviorSanitizer: scripts/sanitize.sh asan simt_sanitizer_test";
#endif
}

#if BATON_HAS_SANITIZER(thread_sanitizer)
template <Bug kBug>
int ReportsOfSum(const simt::Policy& policy) {
  const int before = reports;
  Array<float> in(std::vector<float>(600, 1.0f)), out(2);
  RunKernel(policy, {.grid = {1}, .block = {kSumThreads}, .shared_bytes = sizeof(SumShared)}, &SumRows<kBug>, in.data(),
            out.data(), 2, 300);
  return reports - before;
}
template <Bug kBug>
int ReportsOfPipeline(const simt::Policy& policy) {
  const int before = reports;
  Array<float> in(std::vector<float>(5 * kPipeRows * kPipeCols, 1.0f)), out(kPipeCols);
  RunKernel(policy, {.grid = {1}, .block = {kPipeThreads}, .shared_bytes = sizeof(PipeShared)},
            &PipelinedColumnSum<kBug>, in.data(), out.data(), 5 * kPipeRows, 5);
  return reports - before;
}
#endif

TEST(SimtUnderTsan, AMissingBarrierIsARaceUnderEveryPolicyWhateverTheAnswer) {
#if BATON_HAS_SANITIZER(thread_sanitizer)
  for (const simt::Policy& policy : simt::AllPolicies()) {
    const std::string name = simt::PolicyName(policy);
    EXPECT_EQ(ReportsOfSum<Bug::kNone>(policy), 0) << name;
    EXPECT_GT(ReportsOfSum<Bug::kNoBarrierBeforeRead>(policy), 0) << name;
    EXPECT_GT(ReportsOfSum<Bug::kNoBarrierBeforeReuse>(policy), 0) << name;
    EXPECT_EQ(ReportsOfPipeline<Bug::kNone>(policy), 0) << name;
    EXPECT_GT(ReportsOfPipeline<Bug::kNoBarrierAfterCopy>(policy), 0) << name;
    EXPECT_GT(ReportsOfPipeline<Bug::kNoBarrierBeforeStage>(policy), 0) << name;
  }
#else
  GTEST_SKIP() << "not built with ThreadSanitizer: scripts/sanitize.sh tsan simt_sanitizer_test";
#endif
}

}  // namespace
}  // namespace baton::simt_test
