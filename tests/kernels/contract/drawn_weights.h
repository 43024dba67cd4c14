// Weights in codes, drawn at random.
#pragma once

#include <algorithm>
#include <random>

#include "kernels/quantized/weight.h"
#include "tests/kernels/contract/host_tensor.h"

namespace baton::kernels {

/// Scales of e4m3 are f32 that bf16 would round; no code of it is not a number.
inline QuantizedWeight DrawFloat8(int n, int k, int group, std::mt19937& rng) {
  QuantizedWeight w{8, n, k, group, {}, {}, {}, CodeKind::kE4m3};
  for (int i = 0; i < n * k; ++i) w.codes.push_back(static_cast<uint8_t>(rng() % 127 + rng() % 2 * 128));
  for (int i = 0; i < n * (k / group); ++i) w.scales.push_back(0.0001f + 0.000001f * static_cast<float>(rng() % 997));
  w.zeros.assign(w.scales.size(), 0);
  return w;
}

inline QuantizedWeight DrawBits(int bits, int n, int k, int group, std::mt19937& rng) {
  QuantizedWeight w{bits, n, k, group, {}, {}, {}};
  for (int i = 0; i < n * k; ++i) w.codes.push_back(static_cast<uint8_t>(rng() % (1u << bits)));
  for (int i = 0; i < n * (k / group); ++i) {
    w.scales.push_back(Rounded(DType::kBF16, 0.01f + 0.0001f * static_cast<float>(rng() % 900)));
    w.zeros.push_back(static_cast<uint16_t>(rng() % ((1u << bits) + 1)));
  }
  return w;
}

/// For an x of k columns: their codes shuffled, and a group of inputs for none among them.
inline QuantizedWeight DrawOrdered(int bits, int n, int k, int group, std::mt19937& rng) {
  QuantizedWeight w = DrawBits(bits, n, k + group, group, rng);
  w.x_columns = k;
  for (int i = 0; i < w.k; ++i) w.inputs.push_back(i < k ? i : -1);
  std::shuffle(w.inputs.begin(), w.inputs.end(), rng);
  return w;
}

/// Inputs become e4m3, too.
inline QuantizedWeight DrawRounded(int n, int k, int group, InputRounding rounding, std::mt19937& rng) {
  QuantizedWeight w = DrawFloat8(n, k, group, rng);
  w.rounding = rounding;
  return w;
}

}  // namespace baton::kernels
