// A weight in codes as a checkpoint's file has it: AWQ, GPTQ, compressed-tensors and FP8 differ in how the codes lie,
// and in where their scales and zeros are. Read as floats, or taken as weight.h's form for a device.
//
// Sources: AutoAWQ's GEMM format, AutoGPTQ's checkpoint formats 1 and 2, compressed-tensors' pack-quantized and
// float-quantized. Host code; a view: the file outlives it. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/dtype.h"
#include "kernels/quantized/weight.h"

namespace baton::kernels {

/// Words of 32 bits, little-endian and not aligned, each with 32 / bits unsigned codes of neighbours along one axis.
struct PackedWords {
  const uint8_t* data = nullptr;
  int bits = 4;
  bool along_outputs = false;  ///< neighbours in a word are outputs; else inputs
  bool awq_order = false;      ///< the nibbles of a word are its codes 0, 2, 4, 6, 1, 3, 5, 7; else ascending
  int64_t output_stride = 0;   ///< words from an output (along outputs: a word's outputs) to the next
  int64_t input_stride = 0;    ///< words from an input (along inputs: a word's inputs) to the next
  /// Codes [first, first + count) of an output.
  void ReadRow(int64_t output, int64_t first, int64_t count, uint8_t* out) const;
};

/// value[n][k] = (code[n][k] − zero[n][g]) · scale[n][g] of integers, code · scale of e4m3, where g is input k's group.
struct StoredCodes {
  CodeKind kind = CodeKind::kInteger;
  int64_t n = 0, k = 0;
  int64_t group = 128;              ///< inputs of a group; divides k, or is not below it
  PackedWords codes;                ///< [n, k]
  PackedWords zeros;                ///< [n, groups]; without data all are 2^(bits − 1)
  int zero_offset = 0;              ///< what a stored zero is less than the zero: GPTQ's format 1 has 1
  const uint8_t* scales = nullptr;  ///< f16, bf16 or f32, not aligned
  DType scale_type = DType::kF16;
  int64_t scale_outputs = 1;                                ///< neighbours that share their scales
  int64_t scale_output_stride = 0, scale_group_stride = 0;  ///< elements
  InputRounding rounding;                                   ///< e4m3: what a device makes of x; ReadRow does not ask
  const uint8_t* group_of_input = nullptr;                  ///< [k] i32 in 0 … groups − 1, not aligned; null: k / group

  int64_t groups() const { return group >= k ? 1 : k / group; }
  /// Writes inputs [first, first + count) of an output; each product is rounded to f32 once.
  void ReadRow(int64_t output, int64_t first, int64_t count, float* out) const;
  /// Of `scales` the one that a code is multiplied with.
  int64_t ScaleIndex(int64_t output, int64_t input) const { return IndexOfScale(output, GroupOf(input)); }

  /// How a device keeps the inputs of a box of columns: neighbours of `group` share a scale.
  struct Layout {
    int group = 0;
    /// Column of the box that each input multiplies, −1: none; in order of groups. Empty: they are in order.
    std::vector<int32_t> inputs;
    bool operator==(const Layout&) const = default;
  };
  /// None: groups are too narrow, or cut where a device does not take them (weight.h, GroupFits).
  std::optional<Layout> LayoutOf(int64_t first_column, int64_t columns) const;
  /// A box as `layout`, LayoutOf its columns, says.
  QuantizedWeight Take(int64_t first_row, int64_t rows, int64_t first_column, int64_t columns,
                       const Layout& layout) const;

 private:
  int64_t GroupOf(int64_t input) const;
  int64_t IndexOfScale(int64_t output, int64_t g) const {
    return output / scale_outputs * scale_output_stride + g * scale_group_stride;
  }
  int Zero(int64_t output, int64_t g) const;
  float Scale(int64_t output, int64_t g) const;
};

}  // namespace baton::kernels
