// How a layer's inputs become e4m3 before they multiply weights that are e4m3: the scale that they share, and what is
// left of one. The rule of every device: CpuOps multiplies what the codes stand for, CudaOps the codes.
//
// Sources: the fp8 and finegrained-fp8 checkpoints of vLLM and Transformers (activation_scheme), compressed-tensors'
// input_activations.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace baton::kernels {

/// Of a layer whose weights are e4m3.
struct InputRounding {
  enum class Kind : uint8_t {
    kNone,     ///< inputs are multiplied as they are
    kByToken,  ///< a token's largest input of a group gives the scale of that group; groups are the weight's
    kFixed,    ///< `scale`, whatever the token; larger inputs become ±448 · scale
  };
  Kind kind = Kind::kNone;
  float scale = 0.0f;  ///< kFixed: above 0
  explicit operator bool() const { return kind != Kind::kNone; }
  bool operator==(const InputRounding&) const = default;
};

inline constexpr float kLargestE4m3 = 448.0f;
/// A group's largest input counts as no less: the scale of zeroes is a number above 0.
inline constexpr float kLeastLargestInput = 1e-10f;

/// The scale of a group whose largest magnitude is `largest`.
inline float ScaleOfInputs(float largest) { return std::max(largest, kLeastLargestInput) / kLargestE4m3; }

/// The value in e4m3 that is nearest to v, ties to even, at most ±448: FloatOfE4m3(E4m3OfFloat(v)) without branches.
inline float NearestE4m3(float v) {
  constexpr float kStep = 0x1.8p14f;  // floats beside it are 2⁻⁹ apart, as subnormals are
  const float magnitude = std::fabs(v) > kLargestE4m3 ? kLargestE4m3 : std::fabs(v);
  const uint32_t a = std::bit_cast<uint32_t>(magnitude);
  const float normal = std::bit_cast<float>((a + 0x7ffffu + ((a >> 20) & 1u)) & 0xfff00000u);
  const float nearest = magnitude < 0x1p-6f ? (magnitude + kStep) - kStep : normal;
  return v != v ? v : std::copysign(nearest, v);
}

/// What is left of the n inputs of one token: `to` may be `x`. `group` neighbours share a scale; the last group may be
/// shorter.
inline void RoundInputs(const InputRounding& how, const float* x, int64_t n, int64_t group, float* to) {
  for (int64_t first = 0; first < n; first += group) {
    const int64_t end = std::min(first + group, n);
    float scale = how.scale;
    if (how.kind == InputRounding::Kind::kByToken) {
      float largest = 0.0f;
      for (int64_t i = first; i < end; ++i) largest = std::fmax(largest, std::fabs(x[i]));
      scale = ScaleOfInputs(largest);
    }
    for (int64_t i = first; i < end; ++i) to[i] = NearestE4m3(x[i] / scale) * scale;
  }
}

}  // namespace baton::kernels
