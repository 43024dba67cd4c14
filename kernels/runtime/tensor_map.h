// What TMA must know of a matrix. One function, two halves, as runtime.h.
#pragma once

#include <string>

#include "common/check.h"
#include "kernels/px/px.h"
#include "kernels/runtime/runtime.h"

namespace baton::gpu {

/// A bf16 matrix [rows, columns] of rows `row_stride` elements apart (a multiple of 8), 16-byte aligned, read in boxes
/// of `box_rows` (≤ 256) × 64 columns in the 128-byte swizzled layout that wgmma reads. Passed to kernels as a
/// PX_GRID_CONST.
px::TensorMap2D MakeTensorMap2D(const px::bf16* base, int columns, int rows, int row_stride, int box_rows);

/// What the driver's encoder refuses of these (CUDA driver API, "Tensor Map Object Management"); empty: nothing.
inline std::string WhatTmaRefuses(const void* base, int columns, int rows, int row_stride, int box_rows) {
  constexpr int kAlignment = 16, kMostBoxRows = 256, kElementBytes = 2;
  if (reinterpret_cast<uintptr_t>(base) % kAlignment != 0) return "its address is no multiple of 16 bytes";
  if (columns < 1 || rows < 1) return "it is empty";
  if (row_stride < 1 || row_stride % (kAlignment / kElementBytes) != 0)
    return "its rows begin at no multiples of 16 bytes";
  return box_rows < 1 || box_rows > kMostBoxRows ? "its boxes have no row, or more than 256" : "";
}

#if !defined(__CUDACC__)
inline px::TensorMap2D MakeTensorMap2D(const px::bf16* base, int columns, int rows, int row_stride, int box_rows) {
  const std::string refused = WhatTmaRefuses(base, columns, rows, row_stride, box_rows);
  BATON_CHECK(refused.empty(), "a tensor map of [", rows, ", ", columns, "], stride ", row_stride, ", boxes of ",
              box_rows, " rows: ", refused);
  return {base, columns, rows, row_stride, box_rows};
}
#endif

}  // namespace baton::gpu
