// Weights in codes of any format with drawn scales.
#pragma once

#include "kernels/cuda/linear/gemm_quant.cuh"
#include "kernels/quantized/weight.h"
#include "tests/kernels/cuda/device_test.h"

namespace baton::cuda_test {

/// [n, k]; every code but those of e4m3 that are no number. Scales of e4m3 are f32 that bf16 would round.
inline kernels::QuantizedWeight RandomCodes(cuda::WeightFormat format, int n, int k, int group, Data& data) {
  const bool float8 = format == cuda::WeightFormat::kE4m3;
  const int bits = format == cuda::WeightFormat::kInt4 ? 4 : 8, last = (1 << bits) - 1;
  kernels::QuantizedWeight w{bits, n, k, group, {}, {}, {}};
  if (float8) w.kind = kernels::CodeKind::kE4m3;
  for (int i = 0; i < n * k; ++i) {
    const int code = data.Int(0, last);
    w.codes.push_back(static_cast<uint8_t>(float8 && (code & 127) == 127 ? code - 1 : code));
  }
  for (int i = 0; i < n * (k / group); ++i) {
    w.scales.push_back((float8 ? 0.001f : 0.01f) +
                       0.001f * static_cast<float>(data.Int(0, 1000)) / (float8 ? 300 : 10));
    w.zeros.push_back(static_cast<uint16_t>(float8 ? 0 : data.Int(0, last)));
  }
  return w;
}

}  // namespace baton::cuda_test
