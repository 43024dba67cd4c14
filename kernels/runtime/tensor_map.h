// What TMA must know of a matrix. One function, two halves, as runtime.h.
#pragma once

#include "kernels/px/px.h"
#include "kernels/runtime/runtime.h"

namespace baton::gpu {

/// A bf16 matrix [rows, columns] of rows `row_stride` elements apart (a multiple of 8), 16-byte aligned, read in boxes
/// of `box_rows` (≤ 256) × 64 columns in the 128-byte swizzled layout that wgmma reads. Passed to kernels as a
/// PX_GRID_CONST.
px::TensorMap2D MakeTensorMap2D(const px::bf16* base, int columns, int rows, int row_stride, int box_rows);

#if !defined(__CUDACC__)
inline px::TensorMap2D MakeTensorMap2D(const px::bf16* base, int columns, int rows, int row_stride, int box_rows) {
  return {base, columns, rows, row_stride, box_rows};
}
#endif

}  // namespace baton::gpu
