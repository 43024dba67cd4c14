#include "bench/lib/machine_limits.h"

#include <cstdint>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "bench/lib/measure.h"

namespace baton::bench {
namespace {

// As wide as the registers of the machine that this is compiled for.
#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float Wide __attribute__((vector_size(sizeof(float) * kLanes)));

double OnThreads(int threads, const std::function<void(int)>& work) {
  std::vector<double> rounds;
  for (int round = 0; round < 5; ++round) {
    rounds.push_back(SecondsOf([&] {
      std::vector<std::thread> pool;
      for (int t = 0; t < threads; ++t) pool.emplace_back(work, t);
      for (std::thread& t : pool) t.join();
    }));
  }
  return Summary(rounds).low;
}

float Spin(int64_t steps) {
  Wide acc[12], a, b;
  for (int i = 0; i < kLanes; ++i) a[i] = 1.0f, b[i] = 1e-9f;
  for (Wide& x : acc) x = a;
  for (int64_t i = 0; i < steps; ++i) {
    for (Wide& x : acc) x = x * a + b;
    asm volatile("" : "+x"(a), "+x"(b));
  }
  float sum = 0;
  for (const Wide& x : acc) sum += x[0];
  return sum;
}

}  // namespace

double PeakF32Flops(int threads) {
  constexpr int64_t kSteps = 4'000'000;
  volatile float sink = 0;
  const double seconds = OnThreads(threads, [&](int) { sink = sink + Spin(kSteps); });
  return 2.0 * kLanes * 12 * kSteps * threads / seconds;
}

double ReadBandwidth(int threads) {
  constexpr size_t kWords = size_t{48} << 20;  // 384 MiB a thread
  std::vector<std::vector<uint64_t>> data(static_cast<size_t>(threads), std::vector<uint64_t>(kWords, 1));
  volatile uint64_t sink = 0;
  const double seconds = OnThreads(threads, [&](int t) {
    const uint64_t* p = data[static_cast<size_t>(t)].data();
    uint64_t sum[8] = {};
    for (size_t i = 0; i < kWords; i += 8) {
      for (int j = 0; j < 8; ++j) sum[j] += p[i + j];
    }
    sink = sink + std::accumulate(sum, sum + 8, uint64_t{0});
  });
  return static_cast<double>(kWords * 8 * threads) / seconds;
}

}  // namespace baton::bench
