// A group-quantized weight in host memory: what AWQ, GPTQ, FP8, GGUF Q4_0 (zero 8, group 32) and Q8_0 (stored + 128,
// zero 128, group 32) have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/check.h"
#include "common/float8.h"
#include "common/half.h"
#include "kernels/quantized/input_rounding.h"

namespace baton::kernels {

/// What a code stands for.
enum class CodeKind : uint8_t { kInteger, kE4m3 };

/// value[n][k] = (codes[n][k] − zeros[n][k / group]) · scales[n][k / group]; of e4m3 code · scale.
struct QuantizedWeight {
  int bits = 4;                   ///< 4 or 8
  int n = 0, k = 0, group = 128;  ///< k a multiple of 8 and of group; group 32, a multiple of 64, or k
  std::vector<uint8_t> codes;     ///< [n, k], one code per byte, 0 … 2^bits − 1
  std::vector<float> scales;      ///< [n, k / group]; of integers rounded to bf16
  std::vector<uint16_t> zeros;    ///< [n, k / group], 0 … 2^bits (GPTQ reaches it); of e4m3 0
  CodeKind kind = CodeKind::kInteger;
  std::vector<int32_t> inputs{};  ///< [k] the column of x that input k multiplies, −1: none; empty: k itself
  int x_columns = 0;              ///< of x, where there are `inputs`
  InputRounding rounding{};       ///< of e4m3 without `inputs`: what x becomes first, in groups of `group`
  int in_features() const { return inputs.empty() ? k : x_columns; }
};

/// Groups that the kernels take.
inline bool GroupFits(int k, int group) { return group == 32 || group % 64 == 0 || group == k; }

inline void CheckQuantized(const QuantizedWeight& w) {
  BATON_CHECK(
      (w.bits == 4 || w.bits == 8) && w.k % 8 == 0 && w.group > 0 && w.k % w.group == 0 && GroupFits(w.k, w.group),
      w.bits, " bits, k ", w.k, ", group ", w.group);
  const size_t groups = static_cast<size_t>(w.n) * static_cast<size_t>(w.k / w.group);
  BATON_CHECK(w.codes.size() == static_cast<size_t>(w.n) * static_cast<size_t>(w.k) && w.scales.size() == groups &&
                  w.zeros.size() == groups,
              w.codes.size(), " codes, ", w.scales.size(), " scales, ", w.zeros.size(), " zeros for ", w.n, " × ", w.k,
              " in groups of ", w.group);
  BATON_CHECK(w.inputs.empty() || w.inputs.size() == static_cast<size_t>(w.k), w.inputs.size(), " inputs of ", w.k);
  for (const int32_t input : w.inputs)
    BATON_CHECK(input >= -1 && input < w.x_columns, "input ", input, " of ", w.x_columns);
  BATON_CHECK(!w.rounding || (w.kind == CodeKind::kE4m3 && w.inputs.empty() &&
                              (w.rounding.kind == InputRounding::Kind::kByToken || w.rounding.scale > 0.0f)),
              "inputs that become e4m3 by scale ", w.rounding.scale, " for a weight of ", w.bits, " bits");
}

/// [n, k] without `inputs`, each product rounded to f32.
inline std::vector<float> DequantizedF32(const QuantizedWeight& w) {
  CheckQuantized(w);
  BATON_CHECK(w.kind == CodeKind::kE4m3 && w.inputs.empty());
  const auto k = static_cast<size_t>(w.k), group = static_cast<size_t>(w.group), groups = k / group;
  std::vector<float> out(w.codes.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = FloatOfE4m3(w.codes[i]) * w.scales[i / k * groups + i % k / group];
  return out;
}

/// [n, in_features] in bf16: what every kernel multiplies with, each value rounded once.
inline std::vector<uint16_t> DequantizedBf16(const QuantizedWeight& w) {
  CheckQuantized(w);
  const auto k = static_cast<size_t>(w.k), columns = static_cast<size_t>(w.in_features());
  std::vector<uint16_t> out(static_cast<size_t>(w.n) * columns);
  for (size_t i = 0; i < w.codes.size(); ++i) {
    const size_t row = i / k, input = i % k, g = row * static_cast<size_t>(w.k / w.group) + input / w.group;
    const int64_t column = w.inputs.empty() ? static_cast<int64_t>(input) : w.inputs[input];
    if (column < 0) continue;
    const float value = w.kind == CodeKind::kE4m3
                            ? FloatOfE4m3(w.codes[i]) * w.scales[g]
                            : static_cast<float>(w.codes[i] - w.zeros[g]) * FloatOfBf16(Bf16OfFloat(w.scales[g]));
    out[row * columns + static_cast<size_t>(column)] = Bf16OfFloat(value);
  }
  return out;
}

}  // namespace baton::kernels
