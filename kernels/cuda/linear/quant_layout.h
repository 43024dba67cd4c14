// Weights in codes re-laid out for gemm_quant.cuh and gemm_e4m3.cuh, once at load.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/in_parts.h"
#include "kernels/cuda/linear/gemm_quant.cuh"
#include "kernels/cuda/linear/round_inputs.cuh"
#include "kernels/quantized/weight.h"

namespace baton::cuda {

using kernels::QuantizedWeight;

struct QuantLayout {
  /// [n blocks of 16, k steps of 64, QuantWords, 32]; missing columns and k are code 0. Of a weight that rounds its
  /// inputs [n, RoundedPitch(k) / 16], 16 codes each.
  std::vector<px::U128> words;
  std::vector<QuantMeta> meta;  ///< [n blocks of 16, QuantGroups(k, group), 8]; missing ones are scale 0
};

inline WeightFormat FormatOf(const QuantizedWeight& w) {
  if (w.kind == kernels::CodeKind::kE4m3) return WeightFormat::kE4m3;
  return w.bits == 4 ? WeightFormat::kInt4 : WeightFormat::kInt8;
}

namespace quant_internal {

inline void PlaceCode(const QuantizedWeight& w, int col, int k, uint32_t code, QuantLayout& out) {
  // mma's B fragment: column col % 8 in lane / 4; k pairs in lane % 4, the second register 8 further.
  const int step = k / 64, kk = k % 64 / 16, in16 = k % 16, lane = col % 8 * 4 + in16 % 8 / 2;
  const int reg = col % 16 / 8 * 2 + in16 / 8, high = in16 % 2;  // which of b[4], which half
  const size_t tile = static_cast<size_t>(col / 16) * QuantSteps(w.k) + step;
  if (w.bits == 4) {
    out.words[tile * 32 + lane].w[kk] |= code << (4 * reg + 16 * high);
  } else {
    out.words[(tile * 2 + kk / 2) * 32 + lane].w[kk % 2 * 2 + reg / 2] |= code << (reg % 2 * 16 + high * 8);
  }
}

/// Outputs [first, end), of which no block of 16 is another call's.
inline void PlaceOutputs(const QuantizedWeight& w, int first, int end, QuantLayout& out) {
  const int groups = w.k / w.group, rows = QuantGroups(w.k, w.group);
  for (int col = first; col < end; ++col) {
    const uint8_t* const codes = w.codes.data() + static_cast<size_t>(col) * w.k;
    if (w.rounding)
      std::memcpy(out.words.data() + col * RoundedPitch(w.k) / 16, codes, w.k);
    else
      for (int k = 0; k < w.k; ++k) PlaceCode(w, col, k, codes[k], out);
    for (int g = 0; g < groups; ++g) {
      QuantMeta& meta = out.meta[(static_cast<size_t>(col / 16) * rows + g) * 8 + col % 8];
      const float scale = w.scales[static_cast<size_t>(col) * groups + g];
      if (w.kind == kernels::CodeKind::kE4m3) {
        (col % 16 < 8 ? meta.scales : meta.zeros) = px::BitCast<uint32_t>(scale);
        continue;
      }
      const float zero = w.zeros[static_cast<size_t>(col) * groups + g] + (w.bits == 4 ? 128.0f : 0.0f);
      const int shift = col % 16 / 8 * 16;
      meta.scales |= static_cast<uint32_t>(px::FloatToBf16Bits(scale)) << shift;
      meta.zeros |= static_cast<uint32_t>(px::FloatToBf16Bits(zero)) << shift;
    }
  }
}

}  // namespace quant_internal

inline QuantLayout LayOutQuantized(const QuantizedWeight& w) {
  constexpr int64_t kWorthAThread = 1 << 18;  // codes
  kernels::CheckQuantized(w);
  const int blocks = (w.n + 15) / 16;
  QuantLayout out;
  const int64_t words =
      w.rounding ? w.n * RoundedPitch(w.k) / 16 : int64_t{blocks} * QuantSteps(w.k) * 32 * QuantWords(FormatOf(w));
  out.words.assign(static_cast<size_t>(words), px::U128{});
  out.meta.assign(static_cast<size_t>(blocks) * QuantGroups(w.k, w.group) * 8, QuantMeta{});
  InParts(blocks, std::min(LoadThreads(), static_cast<int64_t>(w.codes.size()) / kWorthAThread),
          [&](int64_t first, int64_t end) {
            quant_internal::PlaceOutputs(w, static_cast<int>(first) * 16, std::min(static_cast<int>(end) * 16, w.n),
                                         out);
          });
  return out;
}

}  // namespace baton::cuda
