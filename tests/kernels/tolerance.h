// How near a kernel's output must be to double precision: one table for every backend's tests. What a table cannot hold
// is compared bit for bit.
#pragma once

#include <cmath>

#include "common/dtype.h"
#include "kernels/px/types.h"

namespace baton::kernel_test {

/// |got − want| ≤ absolute + relative · |want|. NaN is never near.
struct Tolerance {
  double absolute, relative;
  bool Holds(double got, double want) const { return std::abs(got - want) <= absolute + relative * std::abs(want); }
};

/// By the output's type, inputs of order 1.
struct ToleranceOfType {
  Tolerance row;                ///< norms, activations, RoPE, merges: one rounding
  Tolerance attention;          ///< p is rounded to bf16 before p · v where the output is narrow
  Tolerance rotated_attention;  ///< … and q after its rotation
};
constexpr ToleranceOfType ToleranceOf(DType dtype) {
  switch (dtype) {
    case DType::kF32: return {{2e-5, 2e-5}, {5e-6, 0}, {5e-6, 0}};
    case DType::kBF16: return {{4e-3, 1e-2}, {8e-3, 1.6e-2}, {2.5e-2, 0}};
    case DType::kF8E4M3: return {{1e-2, 7e-2}, {}, {}};  // one rounding to 4 bits
    default: return {};
  }
}
template <typename T>
constexpr DType kDTypeOf = DType::kF32;
template <>
inline constexpr DType kDTypeOf<px::bf16> = DType::kBF16;
template <>
inline constexpr DType kDTypeOf<px::e4m3> = DType::kF8E4M3;

constexpr Tolerance kLogSumExp = {2e-4, 2e-4};
constexpr Tolerance kLogProbability = {1e-5, 0};
constexpr Tolerance kRoutingWeight = {1e-5, 0};

/// Of a sum of `terms` products in f32 whose magnitudes add up to `size`; then rounded to `stored`.
inline Tolerance SumTolerance(double size, double terms, DType stored = DType::kF32) {
  return {size * terms * 0x1p-24, stored == DType::kBF16 ? 0x1p-8 : 0.0};
}

/// The same of products of e4m3 with e4m3. Tensor cores before sm_100 keep 13 bits behind the point of the largest
/// addend of an mma and cut off the others': at most 33 · 2^-13 of the sizes of one mma, half of it where signs differ.
/// The emulator adds in f32.
inline Tolerance E4m3SumTolerance(double size, double terms, DType stored = DType::kF32) {
  Tolerance tolerance = SumTolerance(size, terms, stored);
#if defined(__CUDACC__)
  tolerance.absolute += size * 0x1p-9;
#endif
  return tolerance;
}

}  // namespace baton::kernel_test
