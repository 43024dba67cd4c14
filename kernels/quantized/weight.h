// A group-quantized weight in host memory: what AWQ, GPTQ, GGUF Q4_0 (zero 8, group 32) and Q8_0 (stored + 128, zero
// 128, group 32) have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/check.h"
#include "common/half.h"

namespace baton::kernels {

/// value[n][k] = (codes[n][k] − zeros[n][k / group]) · scales[n][k / group].
struct QuantizedWeight {
  int bits = 4;                   ///< 4 or 8
  int n = 0, k = 0, group = 128;  ///< k a multiple of 8 and of group; group 32, a multiple of 64, or k
  std::vector<uint8_t> codes;     ///< [n, k], one code per byte, 0 … 2^bits − 1
  std::vector<float> scales;      ///< [n, k / group], rounded to bf16
  std::vector<uint16_t> zeros;    ///< [n, k / group], 0 … 2^bits (GPTQ reaches it)
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
}

/// [n, k] in bf16: what every kernel multiplies with, each value rounded once.
inline std::vector<uint16_t> DequantizedBf16(const QuantizedWeight& w) {
  CheckQuantized(w);
  std::vector<uint16_t> out(w.codes.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t column = i / static_cast<size_t>(w.k), g = column * static_cast<size_t>(w.k / w.group) +
                                                            i % static_cast<size_t>(w.k) / static_cast<size_t>(w.group);
    const float scale = FloatOfBf16(Bf16OfFloat(w.scales[g]));
    out[i] = Bf16OfFloat(static_cast<float>(w.codes[i] - w.zeros[g]) * scale);
  }
  return out;
}

}  // namespace baton::kernels
