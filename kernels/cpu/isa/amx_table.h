// The inner loops that machines with AMX have on top of AVX-512's: bf16 products in tile registers.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "kernels/cpu/isa/kernel_table.h"

namespace baton::kernels::cpu {

/// Columns of a panel: [K / 32 rounded up][2 tiles][16 pairs of k][16 columns × 2] bf16, zeros past K and N.
inline constexpr int kAmxPanelColumns = 32;
/// k of one tile product.
inline constexpr int kAmxDepth = 32;
/// Rows of a left tile.
inline constexpr int kAmxRows = 16;
/// KernelTable::attention_rows of attention in tiles.
inline constexpr int kAmxAttentionRows = 96;

/// out[r][0, columns) = row r · panels + bias, r < rows.
struct AmxLinearItem {
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

struct AmxTable {
  /// AVX-512's, with attention in tiles: bf16 queries and outputs, KV in bf16 or e4m3.
  KernelTable kernels;
  /// x [rows ≤ 16][k] bf16 → [ceil(k / 32)][16][32], of which it writes `rows` rows.
  void (*pack_rows)(const uint16_t* x, int64_t x_stride, int rows, int64_t k, void* to);
  /// w [columns ≤ 16][k] bf16 → ceil(k / 32) tiles, step_bytes apart.
  void (*pack_columns)(const uint16_t* w, int64_t w_stride, int columns, int64_t k, void* to, int64_t step_bytes);
  void (*linear)(const AmxLinearItem& item);
};

/// Null: this machine has no AMX with bf16, or the system does not let processes use it.
const AmxTable* AmxTableOrNull();

}  // namespace baton::kernels::cpu
