// Sixteen floats in one AVX-512 register. Same names and same roundings as simd_avx2.h, so both give the same bits.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int kNativeLanes = 16;  // floats per machine register: what the GEMM tiles are made of

struct Vec {
  __m512 v;
};

inline __mmask16 TailMask(int n) { return static_cast<__mmask16>(n >= 16 ? 0xFFFFu : (1u << n) - 1u); }

inline Vec Zero() { return {_mm512_setzero_ps()}; }
inline Vec Set(float x) { return {_mm512_set1_ps(x)}; }
inline Vec Load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Vec Load(const float* p, int n) { return {_mm512_maskz_loadu_ps(TailMask(n), p)}; }
inline void Store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline void Store(float* p, Vec a, int n) { _mm512_mask_storeu_ps(p, TailMask(n), a.v); }

inline Vec FromBf16(__m256i h) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))}; }
inline Vec LoadBf16(const uint16_t* p) { return FromBf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline Vec LoadBf16(const uint16_t* p, int n) { return FromBf16(_mm256_maskz_loadu_epi16(TailMask(n), p)); }
inline Vec LoadF16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline Vec LoadF16(const uint16_t* p, int n) { return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(TailMask(n), p))}; }
/// Round to nearest even; a NaN stays a NaN.
inline __m256i ToBf16(Vec a) {
  const __m512i x = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(x, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_add_epi32(x, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  r = _mm512_mask_mov_epi32(r, _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), _mm512_set1_epi32(0x7FC00000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16));
}
inline void StoreBf16(uint16_t* p, Vec a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), ToBf16(a)); }
inline void StoreBf16(uint16_t* p, Vec a, int n) { _mm256_mask_storeu_epi16(p, TailMask(n), ToBf16(a)); }
inline __m256i ToF16(Vec a) { return _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline void StoreF16(uint16_t* p, Vec a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), ToF16(a)); }
inline void StoreF16(uint16_t* p, Vec a, int n) { _mm256_mask_storeu_epi16(p, TailMask(n), ToF16(a)); }

/// Shifted into an f16, e4m3 is its value / 256; 0x7F, which would be 480, becomes a NaN.
inline Vec FromE4m3(__m128i b) {
  const __m256i x = _mm256_cvtepu8_epi16(b), low = _mm256_and_si256(x, _mm256_set1_epi16(0x7F));
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(x, _mm256_set1_epi16(0x80)), 8);
  __m256i h = _mm256_or_si256(_mm256_slli_epi16(low, 7), sign);
  h = _mm256_mask_mov_epi16(h, _mm256_cmpeq_epi16_mask(low, _mm256_set1_epi16(0x7F)), _mm256_set1_epi16(0x7E00));
  return {_mm512_mul_ps(_mm512_cvtph_ps(h), _mm512_set1_ps(256.0f))};
}
inline Vec LoadE4m3(const uint8_t* p) { return FromE4m3(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline Vec LoadE4m3(const uint8_t* p, int n) { return FromE4m3(_mm_maskz_loadu_epi8(TailMask(n), p)); }
/// Round to nearest even, saturating to ±448; a NaN becomes 0x7F (common/float8.h).
inline __m128i ToE4m3(Vec a) {
  const __m512i x = _mm512_castps_si512(a.v),
                sign = _mm512_and_si512(_mm512_srli_epi32(x, 24), _mm512_set1_epi32(0x80));
  const __m512 size =
      _mm512_min_ps(_mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(0x7FFFFFFF))), _mm512_set1_ps(448.0f));
  const __m512i bits = _mm512_castps_si512(size);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 20), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFFF)));
  __m512i r = _mm512_sub_epi32(_mm512_srli_epi32(rounded, 20), _mm512_set1_epi32(120 << 3));
  const __m512i steps = _mm512_cvtps_epi32(_mm512_mul_ps(size, _mm512_set1_ps(512.0f)));  // of 2⁻⁹, below 2⁻⁶
  r = _mm512_mask_mov_epi32(r, _mm512_cmp_ps_mask(size, _mm512_set1_ps(0.015625f), _CMP_LT_OQ), steps);
  r = _mm512_or_si512(r, sign);
  r = _mm512_mask_mov_epi32(r, _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), _mm512_set1_epi32(0x7F));
  return _mm512_cvtepi32_epi8(r);
}
inline void StoreE4m3(uint8_t* p, Vec a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), ToE4m3(a)); }
inline void StoreE4m3(uint8_t* p, Vec a, int n) { _mm_mask_storeu_epi8(p, TailMask(n), ToE4m3(a)); }

inline Vec Add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec Sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec Mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec Div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec Max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec Min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec Fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec Round(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
/// a · 2^n for an integral n in [-126, 127].
inline Vec ScaleByPowerOfTwo(Vec a, Vec n) {
  const __m512i e = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23);
  return {_mm512_mul_ps(a.v, _mm512_castsi512_ps(e))};
}
/// a where x >= limit, else b.
inline Vec WhereGe(Vec x, Vec limit, Vec a, Vec b) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_GE_OQ), b.v, a.v)};
}
/// Lanes [from, to) of a, `other` elsewhere.
inline Vec KeepLanes(Vec a, int from, int to, Vec other) {
  const __mmask16 m = static_cast<__mmask16>(TailMask(to < 0 ? 0 : to) & ~TailMask(from < 0 ? 0 : from));
  return {_mm512_mask_blend_ps(m, other.v, a.v)};
}
/// Bit i: a[i] == b[i].
inline uint32_t EqualMask(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ); }
inline uint32_t GreaterEqualMask(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }
inline uint32_t GreaterMask(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }

inline __m256 LowHalf(Vec a) { return _mm512_castps512_ps256(a.v); }
inline __m256 HighHalf(Vec a) { return _mm512_extractf32x8_ps(a.v, 1); }
inline Vec Join(__m256 lo, __m256 hi) { return {_mm512_insertf32x8(_mm512_castps256_ps512(lo), hi, 1)}; }

/// Transposes a 16 × 16 block: lane j of row i goes to lane i of row j.
inline void Transpose(Vec (&x)[16]) {
  __m512 t[16], u[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(x[i].v, x[i + 1].v);
    t[i + 1] = _mm512_unpackhi_ps(x[i].v, x[i + 1].v);
  }
  auto low = [](__m512 a, __m512 b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
  auto high = [](__m512 a, __m512 b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
  for (int i = 0; i < 16; i += 4) {
    u[i] = low(t[i], t[i + 2]);
    u[i + 1] = high(t[i], t[i + 2]);
    u[i + 2] = low(t[i + 1], t[i + 3]);
    u[i + 3] = high(t[i + 1], t[i + 3]);
  }
  for (int c = 0; c < 4; ++c) {  // 128-bit lane L of u[4 i + c] is column 4 L + c of rows 4 i … 4 i + 3
    const __m512 a = _mm512_shuffle_f32x4(u[c], u[4 + c], 0x88), b = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0x88);
    const __m512 d = _mm512_shuffle_f32x4(u[c], u[4 + c], 0xDD), e = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0xDD);
    x[c].v = _mm512_shuffle_f32x4(a, b, 0x88);
    x[4 + c].v = _mm512_shuffle_f32x4(d, e, 0x88);
    x[8 + c].v = _mm512_shuffle_f32x4(a, b, 0xDD);
    x[12 + c].v = _mm512_shuffle_f32x4(d, e, 0xDD);
  }
}

// ---- one machine register, for GEMM tiles
using Reg = __m512;
inline Reg RegZero() { return _mm512_setzero_ps(); }
inline Reg RegSet(float x) { return _mm512_set1_ps(x); }
inline Reg RegLoad(const float* p) { return _mm512_loadu_ps(p); }
inline Reg RegLoad(const float* p, int n) { return _mm512_maskz_loadu_ps(TailMask(n < 0 ? 0 : n), p); }
inline void RegStore(float* p, Reg a) { _mm512_storeu_ps(p, a); }
inline void RegStore(float* p, Reg a, int n) { _mm512_mask_storeu_ps(p, TailMask(n < 0 ? 0 : n), a); }
inline Reg RegLoadBf16(const uint16_t* p) { return LoadBf16(p).v; }
inline Reg RegLoadF16(const uint16_t* p) { return LoadF16(p).v; }
inline Reg RegFma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
inline Reg RegAdd(Reg a, Reg b) { return _mm512_add_ps(a, b); }
inline Reg RegMul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }

}  // namespace
