// StepSizes: how many tokens steps had, as a histogram with vLLM's buckets. Counted by an engine, reported by its
// worker, shown by the router.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace baton {

struct StepSizes {
  static constexpr std::array<int32_t, 13> kUpTo = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
  std::array<int64_t, kUpTo.size() + 1> steps{};  ///< of up to so many tokens; the last: of more
  int64_t tokens = 0;                             ///< of all of them

  void Count(int32_t tokens_of_step) {
    ++steps[static_cast<size_t>(std::ranges::lower_bound(kUpTo, tokens_of_step) - kUpTo.begin())];
    tokens += tokens_of_step;
  }
};

}  // namespace baton
