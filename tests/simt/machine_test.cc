// The emulated machine itself: reports, counters, streams, events, graphs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/simt/grids.h"
#include "tests/simt/planted_kernels.h"

namespace baton::simt_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Simt, DeadlockReportNamesTheBarriersAndTheirLines) {
  Array<float> in(std::vector<float>(600, 1.0f)), out(2);
  const std::string error =
      RunKernel(simt::Policy{}, {.grid = {1}, .block = {kSumThreads}, .shared_bytes = sizeof(SumShared)},
                &SumRows<Bug::kBarrierInDivergentCode>, in.data(), out.data(), 2, 300);
  EXPECT_THAT(error, AllOf(HasSubstr("deadlock"), HasSubstr("64 threads (first 0) wait in __syncthreads"),
                           HasSubstr("bar.sync id 1 of 128 threads"), HasSubstr("planted_kernels.h:")));
}

PX_KERNEL void StridedRead(const float* in, float* out, int stride) {
  px::Store(out + px::ThreadX(), px::Load(in + px::ThreadX() * stride));
}
TEST(Simt, CountersSeeUncoalescedReads) {
  Array<float> in(std::vector<float>(32 * 8, 1.0f)), out(32);
  for (const auto& [stride, sectors] : {std::pair{1, 4}, std::pair{8, 32}}) {
    gpu::Stream stream;
    stream.SetPolicy({.count = true});
    gpu::Launch(stream, {.grid = {1}, .block = {32}}, &StridedRead, in.data(), out.data(), stride);
    ASSERT_EQ(stream.Synchronize(), "");
    EXPECT_EQ(stream.counters().global_sectors, static_cast<uint64_t>(sectors + 4));
    EXPECT_EQ(stream.counters().global_ideal_sectors, 8u);
  }
}

PX_KERNEL void ReadAWordOfEverySector(const float* in, float* out) {
  px::GridDependencyWait();
  px::Store(out + px::ThreadX(), px::Load(in + px::ThreadX() / 8 * 8));  // a word of every sector
}
TEST(Simt, CountersAreKeptByKernelAndABroadcastNeedsItsBytesOnce) {
  Array<float> in(std::vector<float>(32, 1.0f)), out(32);
  gpu::Stream stream;
  stream.SetPolicy({.count = true});
  gpu::Launch(stream, {.grid = {3}, .block = {32}}, &ReadAWordOfEverySector, in.data(), out.data());
  ASSERT_EQ(stream.Synchronize(), "");
  const simt::Counters& counted = stream.counters_by_kernel().at("ReadAWordOfEverySector");
  EXPECT_EQ(counted.global_requests, 6u);
  EXPECT_EQ(counted.global_sectors, 3u * (4 + 4));
  EXPECT_EQ(counted.global_ideal_sectors, 3u * (1 + 4));
}

PX_KERNEL void ReadAt(const float* in, float* out, long index) { px::Store(out + px::ThreadX(), px::Load(in + index)); }
TEST(Simt, AnAccessToUnmappedMemoryEndsTheGridNotTheProcess) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer reports it itself";
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  GTEST_SKIP() << "a sanitizer reports it itself";
#endif
#endif
  Array<float> in(1024), out(32);
  in[7] = 3.0f;
  EXPECT_THAT(RunKernel(simt::Policy{}, {.grid = {2}, .block = {32}}, &ReadAt, in.data(), out.data(), 1024L),
              AllOf(HasSubstr("access to unmapped memory at 0x"), HasSubstr("block 0,0,0 thread 0")));
  EXPECT_EQ(RunKernel(simt::Policy{}, {.grid = {2}, .block = {32}}, &ReadAt, in.data(), out.data(), 7L), "");
  EXPECT_EQ(out[31], 3.0f);
}

struct BankShared {
  float tile[32 * 33];
};
PX_KERNEL void ColumnRead(float* out, int pitch, int lanes) {
  PX_SHARED(BankShared, smem);
  if (px::ThreadX() >= lanes) return;
  px::StoreShared(&smem.tile[px::ThreadX() * pitch], 1.0f);
  px::Store(out + px::ThreadX(), 1.0f);
}
TEST(Simt, CountersSeeBankConflictsAndDivergence) {
  Array<float> out(32);
  auto count = [&](int pitch, int lanes) {
    gpu::Stream stream;
    stream.SetPolicy({.count = true});
    gpu::Launch(stream, {.grid = {1}, .block = {32}, .shared_bytes = sizeof(BankShared)}, &ColumnRead, out.data(),
                pitch, lanes);
    EXPECT_EQ(stream.Synchronize(), "");
    return stream.counters();
  };
  EXPECT_EQ(count(32, 32).bank_conflicts, 31u);
  EXPECT_EQ(count(33, 32).bank_conflicts, 0u);
  EXPECT_EQ(count(33, 32).divergent_requests, 0u);
  EXPECT_EQ(count(33, 20).divergent_requests, 2u);
}

PX_KERNEL void AddOne(float* x) { px::Store(x + px::ThreadX(), px::Load(x + px::ThreadX()) + 1.0f); }
TEST(Runtime, GraphsReplayWhatWasCaptured) {
  Array<float> x(std::vector<float>(32, 0.0f));
  gpu::Stream stream;
  stream.BeginCapture();
  gpu::Launch(stream, {.grid = {1}, .block = {32}}, &AddOne, x.data());
  gpu::Launch(stream, {.grid = {1}, .block = {32}}, &AddOne, x.data());
  const gpu::Graph graph = stream.EndCapture();
  EXPECT_EQ(stream.Synchronize(), "");
  EXPECT_EQ(x[5], 0.0f) << "capture must not run anything";
  stream.Replay(graph);
  stream.Replay(graph);
  EXPECT_EQ(stream.Synchronize(), "");
  EXPECT_EQ(x[31], 4.0f);
}

TEST(Runtime, AStreamWaitsForAnEventOfAnotherStream) {
  Array<float> x(std::vector<float>(32, 0.0f)), copy(32);
  gpu::Stream first, second;
  gpu::Event event;
  gpu::Launch(first, {.grid = {1}, .block = {32}}, &AddOne, x.data());
  first.Record(event);
  gpu::Launch(first, {.grid = {1}, .block = {32}}, &AddOne, x.data());
  second.Wait(event);
  second.CopyAsync(copy.data(), x.data(), 32 * sizeof(float));
  EXPECT_EQ(second.Synchronize(), "");
  EXPECT_EQ(copy[0], 1.0f);
  EXPECT_EQ(first.Synchronize(), "");
  EXPECT_EQ(x[0], 2.0f);
}

TEST(Runtime, ImpossibleLaunchesAreErrors) {
  Array<float> x(32);
  EXPECT_THAT(RunKernel({}, {.grid = {1}, .block = {2048}}, &AddOne, x.data()), HasSubstr("2048 threads"));
  EXPECT_THAT(RunKernel({}, {.grid = {1}, .block = {32}, .shared_bytes = 300000}, &AddOne, x.data()),
              HasSubstr("shared memory"));
  EXPECT_THAT(RunKernel({}, {.grid = {3}, .block = {32}, .cluster = {2}}, &AddOne, x.data()), HasSubstr("cluster"));
  EXPECT_THAT(RunKernel({}, {.grid = {1}, .block = {32}, .shared_bytes = 8}, &ColumnRead, x.data(), 33, 32),
              HasSubstr("the launch gave 8"));
}

TEST(Runtime, DeviceMemoryIsPoisonedAndGuarded) {
  Array<float> x(33);
  EXPECT_NE(x[7], x[7]) << "NaN";
  EXPECT_DEATH(
      {
        volatile float v = *(x.data() + 36);
        (void)v;
      },
      "");
}

}  // namespace
}  // namespace baton::simt_test
