// The bytes that a packed weight takes on a device of given traits, known before anything is packed. Backends keep
// their panels in these shapes (static_assert beside each); a memory plan and a loaded model agree by it.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace baton::kernels {

/// Outputs and inputs are each rounded up to a multiple.
struct PackedShape {
  int rows = 1, columns = 1;
};
inline constexpr PackedShape kF32HostShape{.rows = 64, .columns = 1};  ///< in the weight's own type
inline constexpr PackedShape kBf16HostShape{.rows = 32, .columns = 32};
inline constexpr PackedShape kDeviceShape{.rows = 128, .columns = 64};  ///< bf16

/// What Ops::Pack's result of a float weight [rows, columns] takes, with a bias or without.
inline int64_t PackedBytes(const OpsTraits& traits, int64_t rows, int64_t columns, DType type, bool bias) {
  const auto up = [](int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; };
  const bool bf16 = traits.device_panels || traits.compute == DType::kBF16;
  const PackedShape shape = traits.device_panels ? kDeviceShape : bf16 ? kBf16HostShape : kF32HostShape;
  const int64_t kept = up(rows, shape.rows) * up(columns, shape.columns);
  const int64_t biases = bias ? (bf16 ? rows : up(rows, shape.rows)) : 0;
  return kept * static_cast<int64_t>(bf16 ? 2 : DTypeBytes(type)) + biases * 4;
}

/// What Ops::PackQuantized's result takes on a device that keeps the codes: blocks of 16 outputs by 64 inputs, and 64
/// bytes of scales and zeros for each group of a block, of which 32-wide groups come in pairs.
inline int64_t PackedCodeBytes(int64_t rows, int64_t columns, int bits, int group, bool bias) {
  const int64_t blocks = (rows + 15) / 16, steps = (columns + 63) / 64;
  const int64_t groups = group == 32 ? steps * 2 : columns / group;
  return blocks * (steps * 128 * bits + groups * 64) + (bias ? rows * 4 : 0);
}

}  // namespace baton::kernels
