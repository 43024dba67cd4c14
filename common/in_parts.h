// One piece of work by several threads, which end with it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace baton {

/// Threads that read weights for a device, which computes with none of the host's: some of them are free.
inline int64_t LoadThreads() {
  constexpr int64_t kMost = 8;
  return std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, kMost);
}

/// Calls part(first, end) for disjoint parts that make up [0, count), on `threads` threads at most, of which one is the
/// caller's. No call may throw.
template <typename Part>
void InParts(int64_t count, int64_t threads, const Part& part) {
  const int64_t parts = std::clamp<int64_t>(threads, 1, std::max<int64_t>(count, 1));
  const auto run = [&](int64_t i) { part(count * i / parts, count * (i + 1) / parts); };
  std::vector<std::jthread> others;
  for (int64_t i = 1; i < parts; ++i) others.emplace_back(run, i);
  run(0);
}

}  // namespace baton
