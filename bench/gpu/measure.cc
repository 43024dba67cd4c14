#include "bench/gpu/measure.h"

#include "kernels/px/px.h"

namespace baton::bench {

constexpr int kReadThreads = 256, kReadAtOnce = 4;

/// Words [0, n) are added up, n a multiple of the grid's stride; the sum is stored where it is one that no memory has.
PX_KERNEL void PX_BOUNDS(kReadThreads) ReadAllKernel(const px::U128* from, int64_t n, uint32_t* sink) {
  px::GridDependencyWait();
  const int64_t stride = static_cast<int64_t>(px::GridX()) * kReadThreads;
  uint32_t sum = 0;
  for (int64_t at = static_cast<int64_t>(px::BlockX()) * kReadThreads + px::ThreadX(); at < n;
       at += stride * kReadAtOnce) {
    px::U128 words[kReadAtOnce];
    PX_UNROLL
    for (int i = 0; i < kReadAtOnce; ++i) words[i] = px::LoadStream(from + at + i * stride);
    PX_UNROLL
    for (int i = 0; i < kReadAtOnce; ++i) sum |= words[i].w[0] & words[i].w[1] & words[i].w[2] & words[i].w[3];
  }
  if (sum == 0x5A5A5A5Bu) px::Store(sink, sum);
}

void ReadAll(gpu::Stream& stream, const void* from, size_t bytes, uint32_t* sink) {
  constexpr size_t kPerBlock = sizeof(px::U128) * kReadThreads * kReadAtOnce;
  BATON_CHECK(bytes % kPerBlock == 0, bytes, " bytes are not whole blocks of ", kPerBlock);
  const size_t most = static_cast<size_t>(gpu::CurrentDevice().multiprocessors) * 8;
  size_t blocks = std::min(bytes / kPerBlock, most);
  while (bytes / kPerBlock % blocks != 0) --blocks;  // every thread has as many words as the others
  gpu::Launch(stream, {.grid = {static_cast<unsigned>(blocks)}, .block = {kReadThreads}}, &ReadAllKernel,
              static_cast<const px::U128*>(from), static_cast<int64_t>(bytes / sizeof(px::U128)), sink);
}

#if defined(__CUDACC__)
Timing Measure(const KernelCase& c, gpu::Stream& stream) {
  constexpr int kWarmUpRuns = 5, kRuns = 31;
  constexpr auto kWarmUpTime = std::chrono::milliseconds(200);  // an idle device's clock takes time to rise
  constexpr size_t kFlushBytes = size_t{256} << 20;             // five times the L2
  const gpu::Memory flush(kFlushBytes), sink(sizeof(uint32_t));
  cudaEvent_t start, stop;
  gpu::CheckCuda(cudaEventCreate(&start), "cudaEventCreate", __LINE__);
  gpu::CheckCuda(cudaEventCreate(&stop), "cudaEventCreate", __LINE__);
  auto run_us = [&] {
    ReadAll(stream, flush.data(), kFlushBytes, static_cast<uint32_t*>(sink.data()));
    gpu::CheckCuda(cudaEventRecord(start, stream.handle()), "cudaEventRecord", __LINE__);
    c.launch(stream);
    gpu::CheckCuda(cudaEventRecord(stop, stream.handle()), "cudaEventRecord", __LINE__);
    const std::string error = stream.Synchronize();
    BATON_CHECK(error.empty(), error);
    float ms = 0;
    gpu::CheckCuda(cudaEventElapsedTime(&ms, start, stop), "cudaEventElapsedTime", __LINE__);
    return ms * 1000;
  };
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < kWarmUpRuns || std::chrono::steady_clock::now() - begun < kWarmUpTime; ++i) run_us();
  std::vector<float> times;
  for (int i = 0; i < kRuns; ++i) times.push_back(run_us());
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[0]};
}
#else
Timing Measure(const KernelCase& c, gpu::Stream& stream) {
  const gpu::Memory flush(size_t{64} << 10), sink(sizeof(uint32_t));
  ReadAll(stream, flush.data(), flush.bytes(), static_cast<uint32_t*>(sink.data()));
  const auto start = std::chrono::steady_clock::now();
  c.launch(stream);
  const std::string error = stream.Synchronize();
  BATON_CHECK(error.empty(), error);
  const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  return {us, us};
}
#endif

}  // namespace baton::bench
