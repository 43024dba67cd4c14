#include "kernels/px/tile_product.h"

#include <algorithm>

namespace baton::px {
namespace {

/// Columns side by side: the compiler's own vectors, whose every element is rounded as a float is.
using F8 = float __attribute__((vector_size(32)));
constexpr int kWide = 8, kRows = 4;

}  // namespace

// With AVX where the machine has it: the same bits, no multiplication is fused with an addition.
__attribute__((target_clones("avx2", "default"))) void TileProduct(const float* a, const float* b, float* product,
                                                                   int rows, int depth, int columns) {
  for (int m = 0; m < rows; m += kRows) {
    const float *a0 = a + m * depth, *a1 = a0 + depth, *a2 = a1 + depth, *a3 = a2 + depth;
    for (int n = 0; n < columns; n += kWide) {
      F8 sum0 = {}, sum1 = {}, sum2 = {}, sum3 = {};
      for (int k = 0; k < depth; ++k) {
        const F8 row = *reinterpret_cast<const F8*>(b + k * columns + n);
        sum0 += a0[k] * row;
        sum1 += a1[k] * row;
        sum2 += a2[k] * row;
        sum3 += a3[k] * row;
      }
      float* out = product + m * columns + n;
      *reinterpret_cast<F8*>(out) = sum0;
      *reinterpret_cast<F8*>(out + columns) = sum1;
      *reinterpret_cast<F8*>(out + 2 * columns) = sum2;
      *reinterpret_cast<F8*>(out + 3 * columns) = sum3;
    }
  }
}

void ReverseDepth(float* a, float* b, int rows, int depth, int columns) {
  for (int m = 0; m < rows; ++m) std::reverse(a + m * depth, a + (m + 1) * depth);
  for (int k = 0; k < depth / 2; ++k)
    std::swap_ranges(b + k * columns, b + (k + 1) * columns, b + (depth - 1 - k) * columns);
}

}  // namespace baton::px
