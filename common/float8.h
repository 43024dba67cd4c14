// OCP e4m3 as its 8 bits, to and from float: 4 exponent and 3 mantissa bits, no infinity, 0x7F is NaN, largest 448.
// Rounding is to nearest, ties to even, saturating; what GPUs call cvt.rn.satfinite.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace baton {

inline float FloatOfE4m3(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24, exponent = (bits >> 3) & 15u, fraction = bits & 7u;
  if ((bits & 0x7fu) == 0x7fu) return std::bit_cast<float>(0x7fc00000u);
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 120) << 23) | (fraction << 20));
  const float magnitude = static_cast<float>(fraction) * 0x1p-9f;  // subnormal or zero: exact
  return sign != 0 ? -magnitude : magnitude;
}

inline uint8_t E4m3OfFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), sign = (bits >> 24) & 0x80u;
  if (std::isnan(value)) return 0x7f;
  const float magnitude = std::fmin(std::fabs(value), 448.0f);
  if (magnitude < 0x1p-6f)
    return static_cast<uint8_t>(sign | static_cast<uint32_t>(std::nearbyint(magnitude * 0x1p9f)));
  const uint32_t a = std::bit_cast<uint32_t>(magnitude);
  return static_cast<uint8_t>(sign | (((a + 0x7ffffu + ((a >> 20) & 1u)) >> 20) - (120u << 3)));
}

}  // namespace baton
