#include "kernels/cpu/pool.h"

#include <immintrin.h>

#include "common/check.h"

namespace baton::kernels::cpu {
namespace {

// About 20 µs: the gap between two regions of one forward pass, not more.
constexpr int kSpins = 400;

template <class Done>
bool SpinUntil(Done done) {
  for (int i = 0; i < kSpins; ++i) {
    if (done()) return true;
    _mm_pause();
  }
  return false;
}

}  // namespace

Pool::Pool(int threads) {
  BATON_CHECK(threads >= 1, "threads ", threads);
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { Serve(); });
}

Pool::~Pool() {
  stop_.store(true, std::memory_order_relaxed);
  region_.fetch_add(1, std::memory_order_release);
  region_.notify_all();
  for (std::thread& t : workers_) t.join();
}

bool Pool::TakeAndDoOne() {
  const uint64_t claim = claims_.fetch_add(1, std::memory_order_acquire);
  const uint64_t item = claim & 0xFFFFFFFFu, items = claim >> 32;
  if (item >= items) return false;
  (*work_)(static_cast<int64_t>(item));
  if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<int>(items)) done_.notify_one();
  return true;
}

void Pool::Run(int64_t items, absl::FunctionRef<void(int64_t)> work) {
  BATON_CHECK(items >= 0 && items < (int64_t{1} << 31), "items ", items);
  if (workers_.empty() || items <= 1) {
    for (int64_t i = 0; i < items; ++i) work(i);
    return;
  }
  work_ = &work;
  done_.store(0, std::memory_order_relaxed);
  claims_.store(static_cast<uint64_t>(items) << 32, std::memory_order_release);
  region_.fetch_add(1, std::memory_order_release);
  region_.notify_all();
  while (TakeAndDoOne()) {
  }
  const int all = static_cast<int>(items);
  if (SpinUntil([&] { return done_.load(std::memory_order_acquire) == all; })) return;
  for (int seen; (seen = done_.load(std::memory_order_acquire)) != all;) done_.wait(seen, std::memory_order_acquire);
}

void Pool::Serve() {
  int seen = region_.load(std::memory_order_acquire);
  while (!stop_.load(std::memory_order_relaxed)) {
    while (TakeAndDoOne()) {
    }
    if (!SpinUntil([&] { return region_.load(std::memory_order_acquire) != seen; }))
      region_.wait(seen, std::memory_order_acquire);
    seen = region_.load(std::memory_order_acquire);
  }
}

}  // namespace baton::kernels::cpu
