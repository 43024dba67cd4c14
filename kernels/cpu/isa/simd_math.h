// What both instruction sets share on top of Vec: reductions in a fixed tree and the exponential.
// Included after simd_avx2.h or simd_avx512.h.
#pragma once

#include "kernels/cpu/isa/element.h"

namespace {

/// Sum of 16 lanes as a fixed tree: i with i + 8, then i + 4, i + 2, i + 1.
inline float SumLanes(Vec a) {
  const __m256 s8 = _mm256_add_ps(LowHalf(a), HighHalf(a));
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

inline float MaxLanes(Vec a) {
  const __m256 s8 = _mm256_max_ps(LowHalf(a), HighHalf(a));
  const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}

/// e^x, relative error < 2e-7; 0 below -87.3, e^88 above 88. Cody-Waite reduction, polynomial of degree 6.
inline Vec Exp(Vec x) {
  const Vec low = Set(-87.3f);
  const Vec clamped = Min(Max(x, low), Set(88.0f));
  const Vec n = Round(Mul(clamped, Set(1.44269504088896341f)));
  Vec r = Fma(n, Set(-0.693145751953125f), clamped);
  r = Fma(n, Set(-1.42860682030941723212e-6f), r);
  Vec p = Set(1.0f / 720);
  p = Fma(p, r, Set(1.0f / 120));
  p = Fma(p, r, Set(1.0f / 24));
  p = Fma(p, r, Set(1.0f / 6));
  p = Fma(p, r, Set(0.5f));
  p = Fma(p, r, Set(1.0f));
  p = Fma(p, r, Set(1.0f));
  return WhereGe(x, low, ScaleByPowerOfTwo(p, n), Zero());
}

/// tanh x = 1 - 2 / (e^2x + 1); absolute error < 3e-7.
inline Vec Tanh(Vec x) {
  const Vec e = Exp(Add(x, x));
  return Sub(Set(1.0f), Div(Set(2.0f), Add(e, Set(1.0f))));
}

inline Vec LoadAs(const float* p) { return Load(p); }
inline Vec LoadAs(const float* p, int n) { return Load(p, n); }
inline Vec LoadAs(const Bf16* p) { return LoadBf16(&p->bits); }
inline Vec LoadAs(const Bf16* p, int n) { return LoadBf16(&p->bits, n); }
inline Vec LoadAs(const F16* p) { return LoadF16(&p->bits); }
inline Vec LoadAs(const F16* p, int n) { return LoadF16(&p->bits, n); }
inline Vec LoadAs(const E4m3* p) { return LoadE4m3(&p->bits); }
inline Vec LoadAs(const E4m3* p, int n) { return LoadE4m3(&p->bits, n); }
inline void StoreAs(float* p, Vec a) { Store(p, a); }
inline void StoreAs(float* p, Vec a, int n) { Store(p, a, n); }
inline void StoreAs(Bf16* p, Vec a) { StoreBf16(&p->bits, a); }
inline void StoreAs(Bf16* p, Vec a, int n) { StoreBf16(&p->bits, a, n); }
inline void StoreAs(F16* p, Vec a) { StoreF16(&p->bits, a); }
inline void StoreAs(F16* p, Vec a, int n) { StoreF16(&p->bits, a, n); }
inline void StoreAs(E4m3* p, Vec a) { StoreE4m3(&p->bits, a); }
inline void StoreAs(E4m3* p, Vec a, int n) { StoreE4m3(&p->bits, a, n); }

inline Reg RegLoadAs(const float* p) { return RegLoad(p); }
inline Reg RegLoadAs(const Bf16* p) { return RegLoadBf16(&p->bits); }
inline Reg RegLoadAs(const F16* p) { return RegLoadF16(&p->bits); }

}  // namespace
