// The inner loops that machines with bf16 products have on top of AVX-512's: in AMX's tile registers, or in vectors
// with AVX512_BF16 alone. Both read the same packed rows and weights; their bits differ.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "kernels/cpu/isa/kernel_table.h"

namespace baton::kernels::cpu {

/// Columns of a panel: [K / 32 rounded up][2 tiles][16 pairs of k][16 columns × 2] bf16, zeros past K and N.
inline constexpr int kBf16PanelColumns = 32;
/// k of one tile product.
inline constexpr int kBf16Depth = 32;
/// Rows of a left tile.
inline constexpr int kBf16Rows = 16;
/// KernelTable::attention_rows of attention in tiles.
inline constexpr int kAmxAttentionRows = 96;

/// out[r][0, columns) = row r · panels + bias, r < rows.
struct Bf16LinearItem {
  const void* left = nullptr;  ///< rows by 16, each as pack_rows leaves them
  int rows = 0;
  const void* panels = nullptr;  ///< ceil(columns / 32) of them, one after another
  int64_t columns = 0;
  int steps = 0;                ///< ceil(K / 32)
  int64_t left_ahead = 0;       ///< bytes to prefetch past the rows' tiles in use; 0: none
  int64_t right_ahead = 0;      ///< … and past the panels'
  const float* bias = nullptr;  ///< [columns] or null
  void* out = nullptr;
  DType out_dtype = DType::kF32;
  int64_t out_stride = 0;  ///< elements
};

struct Bf16Table {
  /// AVX-512's; with AMX, with attention in tiles: bf16 queries and outputs, KV in bf16 or e4m3.
  KernelTable kernels;
  /// x [rows ≤ 16][k] bf16 → [ceil(k / 32)][16][32], of which it writes `rows` rows.
  void (*pack_rows)(const uint16_t* x, int64_t x_stride, int rows, int64_t k, void* to);
  /// w [columns ≤ 16][k] bf16 → ceil(k / 32) tiles, step_bytes apart.
  void (*pack_columns)(const uint16_t* w, int64_t w_stride, int columns, int64_t k, void* to, int64_t step_bytes);
  void (*linear)(const Bf16LinearItem& item);
};

/// Null: this machine has no AMX with bf16, or the system does not let processes use it.
const Bf16Table* AmxTableOrNull();
/// Null: this machine has no AVX512_BF16.
const Bf16Table* DotTableOrNull();

}  // namespace baton::kernels::cpu
