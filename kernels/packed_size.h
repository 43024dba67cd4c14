// The bytes that a packed weight takes on a device of given traits, known before anything is packed. Backends keep
// their panels in these shapes (static_assert beside each); a memory plan and a loaded model agree by it.
#pragma once

#include <algorithm>
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

/// Of a device whose library may multiply: the bias once more, in bf16.
inline int64_t LibraryBiasBytes(const OpsTraits& traits, int64_t rows, bool bias) {
  return traits.library_bytes > 0 && bias ? rows * 2 : 0;
}

/// What Ops::Pack's result of a float weight [rows, columns] takes, with a bias or without.
inline int64_t PackedBytes(const OpsTraits& traits, int64_t rows, int64_t columns, DType type, bool bias) {
  const auto up = [](int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; };
  const bool bf16 = traits.device_panels || traits.compute == DType::kBF16;
  const PackedShape shape = traits.device_panels ? kDeviceShape : bf16 ? kBf16HostShape : kF32HostShape;
  const int64_t kept = up(rows, shape.rows) * up(columns, shape.columns);
  const int64_t biases = bias ? (bf16 ? rows : up(rows, shape.rows)) : 0;
  return kept * static_cast<int64_t>(bf16 ? 2 : DTypeBytes(type)) + biases * 4 + LibraryBiasBytes(traits, rows, bias);
}

/// Pinned host memory through which rows of `columns` bf16 go to a device, until all weights are there: twice a half.
inline constexpr int64_t kWeightHalfBytes = int64_t{16} << 20;
inline int64_t WeightHalvesBytes(int64_t columns) {
  return 2 * std::max(kWeightHalfBytes,
                      (columns + kDeviceShape.columns - 1) / kDeviceShape.columns * kDeviceShape.columns * 2);
}

/// Inputs in e4m3: rows of their scales, and columns of their codes, are rounded up to a multiple.
inline constexpr PackedShape kRoundedShape{.rows = 128, .columns = 128};

/// What Ops::PackQuantized's result takes on a device that keeps the codes: blocks of 16 outputs by 64 inputs, or rows
/// of codes where inputs become e4m3 (`rounds`), and 64 bytes of scales and zeros for each group of 16 outputs, of
/// which 32-wide groups come in pairs.
inline int64_t PackedCodeBytes(int64_t rows, int64_t columns, int bits, int group, bool rounds, bool bias) {
  const int64_t blocks = (rows + 15) / 16, steps = (columns + 63) / 64, padded = kRoundedShape.columns;
  const int64_t groups = group == 32 ? steps * 2 : columns / group;
  const int64_t codes = rounds ? rows * ((columns + padded - 1) / padded * padded) : blocks * steps * 128 * bits;
  return codes + blocks * groups * 64 + (bias ? rows * 4 : 0);
}

/// What a library that multiplies e4m3 with e4m3 reads for the scales of a weight, in floats: one for each output where
/// all inputs share one, or for 128 × 128 weights, [outputs / 128 rounded up][inputs / 128 rounded up to 4]. 0: it has
/// none for such groups.
inline constexpr int kLibraryBlock = 128;
inline int64_t LibraryBlockPitch(int64_t columns) { return (columns / kLibraryBlock + 3) / 4 * 4; }
inline int64_t LibraryScales(int64_t rows, int64_t columns, int group) {
  if (group == columns) return rows;
  return group == kLibraryBlock ? (rows + kLibraryBlock - 1) / kLibraryBlock * LibraryBlockPitch(columns) : 0;
}

/// What a device keeps of a weight of PackQuantized for such a library.
inline int64_t LibraryCodeBytes(const OpsTraits& traits, int64_t rows, int64_t columns, int group, bool rounds,
                                bool bias) {
  if (traits.library_bytes == 0 || !rounds) return 0;
  return LibraryScales(rows, columns, group) * 4 + LibraryBiasBytes(traits, rows, bias);
}

/// Rows of x from which on a weight in codes is made bf16 first. By arithmetic, not yet measured: that moves 5 bytes a
/// weight, 1.2 ps at 4.3 TB/s, and each row saves 2.3 (mma.sync) to 5 fs (wgmma) a weight. Above any step of decodes.
inline constexpr int64_t kExpandRows = 512;

/// Working memory for layers that are kept in codes on a device: one runs at a time, so what the largest of them takes.
class CodeRooms {
 public:
  /// `work_bytes`: OpsTraits'.
  explicit CodeRooms(int64_t work_bytes = 0) : work_bytes_(work_bytes) {}

  /// A weight of PackQuantized: outputs, inputs as they are kept, inputs that share a scale. `ordered`: in an order of
  /// their own; `rounds`: they become e4m3.
  void Add(int64_t outputs, int64_t inputs, int group, bool ordered, bool rounds) {
    if (rounds) {
      rounded_columns_ = std::max(rounded_columns_, Up(inputs, kRoundedShape.columns));
      rounded_groups_ = std::max(rounded_groups_, inputs / group);
      return;
    }
    if (ordered) ordered_inputs_ = std::max(ordered_inputs_, inputs);
    expanded_bytes_ = std::max(expanded_bytes_,
                               std::min(Up(outputs, kDeviceShape.rows), OutputsAtOnce(inputs)) * OutputBytes(inputs));
  }

  /// Outputs that are in bf16 at once: a quarter of `work_bytes`, in whole tiles, one at least.
  int64_t OutputsAtOnce(int64_t inputs) const {
    return std::max<int64_t>(1, work_bytes_ / 4 / (kDeviceShape.rows * OutputBytes(inputs))) * kDeviceShape.rows;
  }
  /// Of x in e4m3: its codes, behind them the scales of its rows' groups.
  static int64_t RoundedBytes(int64_t rows, int64_t columns, int64_t groups) {
    return rows * columns + groups * Up(rows, kRoundedShape.rows) * 4;
  }

  // With steps of up to `rows` rows; 0: no weight needs such.
  int64_t Ordered(int64_t rows) const { return rows * ordered_inputs_ * 2; }                  ///< x
  int64_t Expanded(int64_t rows) const { return rows >= kExpandRows ? expanded_bytes_ : 0; }  ///< outputs in bf16
  int64_t Rounded(int64_t rows) const { return RoundedBytes(rows, rounded_columns_, rounded_groups_); }  ///< x in e4m3
  int64_t Bytes(int64_t rows) const { return Ordered(rows) + Expanded(rows) + Rounded(rows); }

 private:
  static int64_t Up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
  static int64_t OutputBytes(int64_t inputs) { return Up(inputs, kDeviceShape.columns) * 2; }

  int64_t work_bytes_;
  int64_t ordered_inputs_ = 0, expanded_bytes_ = 0, rounded_columns_ = 0, rounded_groups_ = 0;
};

}  // namespace baton::kernels
