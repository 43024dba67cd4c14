// Sixteen floats in two AVX2 registers. Same names and same roundings as simd_avx512.h, so both give the same bits.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int kNativeLanes = 8;  // floats per machine register: what the GEMM tiles are made of

struct Vec {
  __m256 lo, hi;
};

inline __m256i LaneMask(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline Vec Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Vec Set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vec Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline Vec Load(const float* p, int n) {
  return {_mm256_maskload_ps(p, LaneMask(n)), _mm256_maskload_ps(p + 8, LaneMask(n - 8))};
}
inline void Store(float* p, Vec a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline void Store(float* p, Vec a, int n) {
  _mm256_maskstore_ps(p, LaneMask(n), a.lo);
  _mm256_maskstore_ps(p + 8, LaneMask(n - 8), a.hi);
}

inline __m256 HalfFromBf16(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
inline __m128i LoadHalves(const uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
/// AVX2 has no masked 16-bit load: the tail goes through a small array.
struct HalfTail {
  alignas(32) uint16_t h[16] = {};
  HalfTail() = default;
  HalfTail(const uint16_t* p, int n) {
    for (int i = 0; i < n && i < 16; ++i) h[i] = p[i];
  }
};
inline Vec LoadBf16(const uint16_t* p) { return {HalfFromBf16(LoadHalves(p)), HalfFromBf16(LoadHalves(p + 8))}; }
inline Vec LoadBf16(const uint16_t* p, int n) { return LoadBf16(HalfTail(p, n).h); }
inline Vec LoadF16(const uint16_t* p) { return {_mm256_cvtph_ps(LoadHalves(p)), _mm256_cvtph_ps(LoadHalves(p + 8))}; }
inline Vec LoadF16(const uint16_t* p, int n) { return LoadF16(HalfTail(p, n).h); }
/// Round to nearest even; a NaN stays a NaN.
inline __m128i HalfToBf16(__m256 a) {
  const __m256i x = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1));
  __m256i r = _mm256_add_epi32(x, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256 nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
  r = _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7FC00000), _mm256_castps_si256(nan));
  r = _mm256_srli_epi32(r, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}
inline void StoreBf16(uint16_t* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), HalfToBf16(a.lo));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), HalfToBf16(a.hi));
}
inline void StoreBf16(uint16_t* p, Vec a, int n) {
  HalfTail t;
  StoreBf16(t.h, a);
  for (int i = 0; i < n && i < 16; ++i) p[i] = t.h[i];
}
inline void StoreF16(uint16_t* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
inline void StoreF16(uint16_t* p, Vec a, int n) {
  HalfTail t;
  StoreF16(t.h, a);
  for (int i = 0; i < n && i < 16; ++i) p[i] = t.h[i];
}

/// Shifted into an f16, e4m3 is its value / 256; 0x7F, which would be 480, becomes a NaN.
inline __m256 HalfFromE4m3(__m128i x) {  // eight, in 16 bits each
  const __m128i low = _mm_and_si128(x, _mm_set1_epi16(0x7F));
  const __m128i sign = _mm_slli_epi16(_mm_and_si128(x, _mm_set1_epi16(0x80)), 8);
  const __m128i nan = _mm_cmpeq_epi16(low, _mm_set1_epi16(0x7F));
  const __m128i h = _mm_or_si128(_mm_slli_epi16(low, 7), sign);
  return _mm256_mul_ps(_mm256_cvtph_ps(_mm_blendv_epi8(h, _mm_set1_epi16(0x7E00), nan)), _mm256_set1_ps(256.0f));
}
inline Vec LoadE4m3(const uint8_t* p) {
  const __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {HalfFromE4m3(_mm256_castsi256_si128(x)), HalfFromE4m3(_mm256_extracti128_si256(x, 1))};
}
inline Vec LoadE4m3(const uint8_t* p, int n) {
  alignas(16) uint8_t tail[16] = {};
  for (int i = 0; i < n && i < 16; ++i) tail[i] = p[i];
  return LoadE4m3(tail);
}
/// Round to nearest even, saturating to ±448; a NaN becomes 0x7F (common/float8.h).
inline __m256i HalfToE4m3(__m256 a) {  // in 32 bits each
  const __m256i x = _mm256_castps_si256(a), sign = _mm256_and_si256(_mm256_srli_epi32(x, 24), _mm256_set1_epi32(0x80));
  const __m256 size =
      _mm256_min_ps(_mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(0x7FFFFFFF))), _mm256_set1_ps(448.0f));
  const __m256i bits = _mm256_castps_si256(size);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 20), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFFF)));
  __m256i r = _mm256_sub_epi32(_mm256_srli_epi32(rounded, 20), _mm256_set1_epi32(120 << 3));
  const __m256i steps = _mm256_cvtps_epi32(_mm256_mul_ps(size, _mm256_set1_ps(512.0f)));  // of 2⁻⁹, below 2⁻⁶
  const __m256 small = _mm256_cmp_ps(size, _mm256_set1_ps(0.015625f), _CMP_LT_OQ);
  r = _mm256_or_si256(_mm256_blendv_epi8(r, steps, _mm256_castps_si256(small)), sign);
  return _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7F), _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
}
inline __m128i ToE4m3(Vec a) {
  const __m256i lo = HalfToE4m3(a.lo), hi = HalfToE4m3(a.hi);
  const __m128i low = _mm_packus_epi32(_mm256_castsi256_si128(lo), _mm256_extracti128_si256(lo, 1));
  return _mm_packus_epi16(low, _mm_packus_epi32(_mm256_castsi256_si128(hi), _mm256_extracti128_si256(hi, 1)));
}
inline void StoreE4m3(uint8_t* p, Vec a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), ToE4m3(a)); }
inline void StoreE4m3(uint8_t* p, Vec a, int n) {
  alignas(16) uint8_t tail[16];
  StoreE4m3(tail, a);
  for (int i = 0; i < n && i < 16; ++i) p[i] = tail[i];
}

inline Vec Add(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline Vec Sub(Vec a, Vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline Vec Mul(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline Vec Div(Vec a, Vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline Vec Max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline Vec Min(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline Vec Fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
inline Vec Round(Vec a) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, kMode), _mm256_round_ps(a.hi, kMode)};
}
/// a · 2^n for an integral n in [-126, 127].
inline __m256 HalfPowerOfTwo(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline Vec ScaleByPowerOfTwo(Vec a, Vec n) { return Mul(a, {HalfPowerOfTwo(n.lo), HalfPowerOfTwo(n.hi)}); }
/// a where x >= limit, else b.
inline Vec WhereGe(Vec x, Vec limit, Vec a, Vec b) {
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_cmp_ps(x.lo, limit.lo, _CMP_GE_OQ)),
          _mm256_blendv_ps(b.hi, a.hi, _mm256_cmp_ps(x.hi, limit.hi, _CMP_GE_OQ))};
}
/// Lanes [from, to) of a, `other` elsewhere.
inline Vec KeepLanes(Vec a, int from, int to, Vec other) {
  const __m256 lo = _mm256_castsi256_ps(_mm256_andnot_si256(LaneMask(from), LaneMask(to)));
  const __m256 hi = _mm256_castsi256_ps(_mm256_andnot_si256(LaneMask(from - 8), LaneMask(to - 8)));
  return {_mm256_blendv_ps(other.lo, a.lo, lo), _mm256_blendv_ps(other.hi, a.hi, hi)};
}
template <int kCompare>
inline uint32_t CompareMask(Vec a, Vec b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, kCompare))) |
         static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, kCompare))) << 8;
}
/// Bit i: a[i] == b[i].
inline uint32_t EqualMask(Vec a, Vec b) { return CompareMask<_CMP_EQ_OQ>(a, b); }
inline uint32_t GreaterEqualMask(Vec a, Vec b) { return CompareMask<_CMP_GE_OQ>(a, b); }
inline uint32_t GreaterMask(Vec a, Vec b) { return CompareMask<_CMP_GT_OQ>(a, b); }

inline __m256 LowHalf(Vec a) { return a.lo; }
inline __m256 HighHalf(Vec a) { return a.hi; }
inline Vec Join(__m256 lo, __m256 hi) { return {lo, hi}; }

inline void Transpose8(__m256 (&x)[8]) {
  __m256 t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
  }
  for (int c = 0; c < 4; ++c) {
    x[c] = _mm256_permute2f128_ps(u[c], u[4 + c], 0x20);
    x[4 + c] = _mm256_permute2f128_ps(u[c], u[4 + c], 0x31);
  }
}
/// Transposes a 16 × 16 block: lane j of row i goes to lane i of row j.
inline void Transpose(Vec (&x)[16]) {
  __m256 a[8], b[8], c[8], d[8];
  for (int i = 0; i < 8; ++i) {
    a[i] = x[i].lo;
    b[i] = x[i].hi;
    c[i] = x[8 + i].lo;
    d[i] = x[8 + i].hi;
  }
  Transpose8(a);
  Transpose8(b);
  Transpose8(c);
  Transpose8(d);
  for (int i = 0; i < 8; ++i) {
    x[i] = {a[i], c[i]};
    x[8 + i] = {b[i], d[i]};
  }
}

// ---- one machine register, for GEMM tiles
using Reg = __m256;
inline Reg RegZero() { return _mm256_setzero_ps(); }
inline Reg RegSet(float x) { return _mm256_set1_ps(x); }
inline Reg RegLoad(const float* p) { return _mm256_loadu_ps(p); }
inline Reg RegLoad(const float* p, int n) { return _mm256_maskload_ps(p, LaneMask(n)); }
inline void RegStore(float* p, Reg a) { _mm256_storeu_ps(p, a); }
inline void RegStore(float* p, Reg a, int n) { _mm256_maskstore_ps(p, LaneMask(n), a); }
inline Reg RegLoadBf16(const uint16_t* p) { return HalfFromBf16(LoadHalves(p)); }
inline Reg RegLoadF16(const uint16_t* p) { return _mm256_cvtph_ps(LoadHalves(p)); }
inline Reg RegFma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
inline Reg RegAdd(Reg a, Reg b) { return _mm256_add_ps(a, b); }
inline Reg RegMul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }

}  // namespace
