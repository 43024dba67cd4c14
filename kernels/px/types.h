// Element types of kernels, the same on both halves: no CUDA header is needed, so the emulator builds anywhere.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define PX_BOTH __host__ __device__ __forceinline__
#else
#define PX_BOTH inline
#endif

namespace baton::px {

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};
/// OCP e4m3: 4 exponent, 3 mantissa bits, no infinity, 0x7F is NaN, largest 448.
struct e4m3 {
  uint8_t bits;
};

/// 16 bytes: the widest access of a thread.
struct alignas(16) U128 {
  uint32_t w[4];
};
struct alignas(8) U64 {
  uint32_t w[2];
};
struct alignas(8) F2 {
  float x, y;
};

/// By the builtin: through memcpy nvcc forgets the source's alignment and loads vectors byte by byte.
template <typename To, typename From>
PX_BOTH To BitCast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

PX_BOTH float Bf16BitsToFloat(uint32_t bits) { return BitCast<float>(bits << 16); }

/// Round to nearest even; NaN becomes the hardware's 0x7FFF.
PX_BOTH uint16_t FloatToBf16Bits(float f) {
  const uint32_t u = BitCast<uint32_t>(f);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFF;
  return static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

PX_BOTH float F16BitsToFloat(uint32_t h) {
  const uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3FFu;
  if (exponent == 31) return BitCast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0) return BitCast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * (1.0f / 16777216.0f);  // subnormal: mantissa · 2⁻²⁴
  return sign != 0 ? -magnitude : magnitude;
}

PX_BOTH uint16_t FloatToF16Bits(float f) {
  const uint32_t u = BitCast<uint32_t>(f), sign = (u >> 16) & 0x8000u, a = u & 0x7FFFFFFFu;
  if (a > 0x7F800000u) return 0x7FFF;
  if (a >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // rounds to 65536 or more
  if (a < 0x38800000u) {                                               // subnormal half
    const float scaled = BitCast<float>(a) * 16777216.0f;
    uint32_t m = static_cast<uint32_t>(scaled);
    const float rest = scaled - static_cast<float>(m);
    if (rest > 0.5f || (rest == 0.5f && (m & 1u))) ++m;
    return static_cast<uint16_t>(sign | m);
  }
  const uint32_t rounded = a + 0xFFFu + ((a >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

PX_BOTH float E4m3BitsToFloat(uint32_t b) {
  const uint32_t exponent = (b >> 3) & 15u, mantissa = b & 7u;
  float f;
  if ((b & 0x7Fu) == 0x7Fu) return BitCast<float>(0x7FC00000u);
  if (exponent == 0)
    f = static_cast<float>(mantissa) * (1.0f / 512.0f);
  else
    f = BitCast<float>(((exponent + 120) << 23) | (mantissa << 20));
  return (b & 0x80u) != 0 ? -f : f;
}

/// Round to nearest even, saturating to ±448 (cvt.rn.satfinite).
PX_BOTH uint8_t FloatToE4m3Bits(float f) {
  const uint32_t u = BitCast<uint32_t>(f), sign = (u >> 24) & 0x80u, a = u & 0x7FFFFFFFu;
  if (a > 0x7F800000u) return static_cast<uint8_t>(0x7Fu);
  const float x = BitCast<float>(a);
  if (x >= 448.0f) return static_cast<uint8_t>(sign | 0x7Eu);
  if (a < 0x3C800000u) {  // below 2⁻⁶: subnormal, steps of 2⁻⁹
    const float scaled = x * 512.0f;
    uint32_t m = static_cast<uint32_t>(scaled);
    const float rest = scaled - static_cast<float>(m);
    if (rest > 0.5f || (rest == 0.5f && (m & 1u))) ++m;
    return static_cast<uint8_t>(sign | m);
  }
  const uint32_t rounded = a + 0x7FFFFu + ((a >> 20) & 1u);
  const uint32_t bits = (rounded - (120u << 23)) >> 20;
  return static_cast<uint8_t>(sign | (bits > 0x7Eu ? 0x7Eu : bits));
}

PX_BOTH float ToFloat(float x) { return x; }
PX_BOTH float ToFloat(bf16 x) { return Bf16BitsToFloat(x.bits); }
PX_BOTH float ToFloat(f16 x) { return F16BitsToFloat(x.bits); }
PX_BOTH float ToFloat(e4m3 x) { return E4m3BitsToFloat(x.bits); }

template <typename T>
PX_BOTH T FromFloat(float x);
template <>
PX_BOTH float FromFloat<float>(float x) {
  return x;
}
template <>
PX_BOTH bf16 FromFloat<bf16>(float x) {
  return bf16{FloatToBf16Bits(x)};
}
template <>
PX_BOTH f16 FromFloat<f16>(float x) {
  return f16{FloatToF16Bits(x)};
}
template <>
PX_BOTH e4m3 FromFloat<e4m3>(float x) {
  return e4m3{FloatToE4m3Bits(x)};
}

}  // namespace baton::px
