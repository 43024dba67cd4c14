// A random weight in codes, with one scale, for the cases of the GEMMs and the GEMV.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>

#include "kernels/cuda/linear/gemm_quant.cuh"
#include "kernels/quantized/weight.h"

namespace baton::bench {

/// [n, k], values within ± `reach`, a power of two: bf16 holds them exactly.
inline std::shared_ptr<const kernels::QuantizedWeight> RandomCodes(cuda::WeightFormat format, int n, int k, int group,
                                                                   float reach) {
  auto w = std::make_shared<kernels::QuantizedWeight>();
  const bool float8 = format == cuda::WeightFormat::kE4m3;
  w->bits = format == cuda::WeightFormat::kInt4 ? 4 : 8;
  w->n = n, w->k = k, w->group = group;
  std::mt19937 rng(7);
  w->codes.resize(static_cast<size_t>(n) * static_cast<size_t>(k));
  const uint32_t middle = 1u << (w->bits - 1);
  for (auto& code : w->codes) {
    code = static_cast<uint8_t>(rng() & (2 * middle - 1));
    if (float8 && (code & 127) == 127) code = 0;
  }
  if (float8) w->kind = kernels::CodeKind::kE4m3;
  w->scales.assign(static_cast<size_t>(n) * static_cast<size_t>(k / group),
                   float8 ? reach / 512 : reach / static_cast<float>(middle));
  w->zeros.assign(w->scales.size(), static_cast<uint16_t>(float8 ? 0 : middle));
  return w;
}

inline double ValueOf(const kernels::QuantizedWeight& w, int output, int input) {
  const uint8_t code = w.codes[static_cast<size_t>(output) * static_cast<size_t>(w.k) + static_cast<size_t>(input)];
  const bool float8 = w.kind == kernels::CodeKind::kE4m3;
  return (float8 ? double{FloatOfE4m3(code)} : static_cast<double>(code) - w.zeros[0]) * double{w.scales[0]};
}

/// " g128", or " channel" where a row has one scale: behind a shape.
inline std::string GroupName(int k, int group) {
  return group == k ? std::string(" channel") : std::string(" g").append(std::to_string(group));
}

}  // namespace baton::bench
