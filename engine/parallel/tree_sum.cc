#include "engine/parallel/tree_sum.h"

#include <algorithm>
#include <bit>

namespace baton::engine {
namespace {

constexpr int64_t kChunk = 512;  // floats; stays in the nearest cache at every depth of the tree

void SumChunk(std::span<const float* const> parts, int64_t at, int64_t n, float* out) {
  if (parts.size() == 1) {
    std::copy_n(parts[0] + at, n, out);
    return;
  }
  const size_t left = std::bit_floor(parts.size() - 1);
  alignas(64) float right_sum[kChunk];
  SumChunk(parts.first(left), at, n, out);
  SumChunk(parts.subspan(left), at, n, right_sum);
  for (int64_t i = 0; i < n; ++i) out[i] += right_sum[i];
}

}  // namespace

void TreeSum(std::span<const float* const> parts, int64_t n, float* out) {
  alignas(64) float sum[kChunk];  // `out` may be a part that is still to be read
  for (int64_t at = 0; at < n; at += kChunk) {
    const int64_t count = std::min(kChunk, n - at);
    SumChunk(parts, at, count, sum);
    std::copy_n(sum, count, out + at);
  }
}

}  // namespace baton::engine
