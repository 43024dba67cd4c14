// The inner loops of CpuOps, once per instruction set. Each works on one row (or one tile of rows whose bits do not
// depend on the others); CpuOps cuts the work and runs it on its pool. Both tables compute the same bits.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "kernels/ops.h"

namespace baton::kernels::cpu {

/// Columns of a packed weight panel; a panel is [K][kPanelColumns], columns past N are zero.
inline constexpr int kPanelColumns = 64;
/// Rows of one call of linear_panel, at most.
inline constexpr int kLinearRows = 96;
/// Attention reduces KV in tiles of this many logical tokens, counted from position 0.
inline constexpr int kAttentionTile = 256;

/// KernelTable::attention_rows of the f32 kernels.
inline constexpr int kAttentionRows = 48;

/// Consecutive rows of one sequence and the query heads of one KV head. rows · heads ≤ attention_rows, head_dim ≤ 256.
struct AttentionItem {
  const void* q = nullptr;  ///< the first row's first head; heads of a row are dense
  void* out = nullptr;
  int64_t q_row_bytes = 0, out_row_bytes = 0;
  DType dtype = DType::kF32;
  int rows = 0, heads = 0;
  int32_t first_position = 0;  ///< of the first row
  const KvPlaneView* k = nullptr;
  const KvPlaneView* v = nullptr;
  const int32_t* blocks = nullptr;  ///< the sequence's table
  int kv_head = 0;
  int window = 0;
  float scale = 1, softcap = 0;
  float v_scale = 1;             ///< multiplies the sum of values
  const float* sinks = nullptr;  ///< [heads] or null
};

struct KernelTable {
  const char* isa;  ///< "avx2", "avx512_core"
  void (*rms_norm)(const float* x, const float* weight, float weight_offset, float eps, int n, void* out,
                   DType out_dtype);
  void (*add)(const void* x, DType dtype, float* residual, int n);
  /// act(gate[i]) · up[i], gate at gate_up[0, n), up at [n, 2n).
  void (*gated)(Activation act, const void* gate_up, DType dtype, int n, void* out);
  /// dst = src · scale, between float types.
  void (*convert)(const void* src, DType src_dtype, float scale, void* dst, DType dst_dtype, int n);
  /// RMSNorm (norm may be null) and rotation of one head, in place. cos, sin [rotary_dim / 2].
  void (*norm_rope)(void* head, DType dtype, int head_dim, const float* norm, float norm_offset, float eps,
                    const float* cosines, const float* sines, int rotary_dim);
  void (*attention)(const AttentionItem& item);
  int attention_rows;  ///< of one item, at most: its rows times its heads
  /// out[r][0, columns) = x[r] · panel + bias for r < rows ≤ kLinearRows: every output is one FMA chain over k in
  /// order. x rows f32 [K]; panel [K][kPanelColumns] of weight_dtype; bias [kPanelColumns] or null.
  void (*linear_panel)(const float* x, int64_t x_stride, int rows, const void* panel, DType weight_dtype, int64_t k,
                       const float* bias, int columns, void* out, DType out_dtype, int64_t out_stride);
  void (*soft_cap)(float cap, float* x, int64_t n);
  float (*max)(const float* x, int64_t n);
  /// Σ exp((x - shift) · scale), in fixed chunks.
  double (*sum_exp)(const float* x, float shift, float scale, int64_t n);
  /// Index of the greatest; the lowest index wins a tie; NaN never wins.
  int64_t (*argmax)(const float* x, int64_t n);
};

const KernelTable& Avx2Table();
const KernelTable& Avx512Table();

}  // namespace baton::kernels::cpu
