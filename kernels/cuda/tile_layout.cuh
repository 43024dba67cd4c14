// How rows of a tile lie in shared memory.
#pragma once

#include "kernels/px/px.h"

namespace baton::cuda {

/// Rows of kDim elements in shared memory, 16-byte chunks placed so that ldmatrix has no bank conflicts: XOR with the
/// row where a row is a multiple of 128 bytes, else an odd number of chunks from row to row.
template <typename T, int kDim>
struct TileLayout {
  static constexpr int kChunk = 16 / static_cast<int>(sizeof(T));
  static constexpr int kChunks = kDim / kChunk;
  static constexpr bool kSwizzled = kChunks % 8 == 0;
  static constexpr int kPitch = kSwizzled ? kDim : (kChunks | 1) * kChunk;
  PX_DEVICE static int Offset(int row, int chunk) {
    return row * kPitch + (kSwizzled ? chunk ^ (row & 7) : chunk) * kChunk;
  }
};

/// Rows of kDim bf16 as wgmma reads them and TMA writes them: panels of 64 columns one behind the other, each of kRows
/// rows of 128 bytes, 16-byte chunks XOR-swizzled by row % 8. Panels begin at multiples of 1,024 bytes.
template <int kDim, int kRows>
struct PanelLayout {
  static_assert(kDim % 64 == 0 && kRows % 8 == 0);
  static constexpr int kChunk = 8, kChunks = kDim / kChunk;
  static constexpr int kPitch = 64;  ///< from row to row, by multiples of 8 rows
  static constexpr int kPanels = kDim / kPitch, kPanel = kRows * kPitch;
  PX_DEVICE static int Offset(int row, int chunk) {
    return chunk / 8 * kPanel + row * kPitch + ((chunk ^ row) & 7) * kChunk;
  }
};

/// Rows of kDim elements one behind the other: for what is read in the order in which it was copied.
template <typename T, int kDim>
struct DenseLayout {
  static constexpr int kChunk = 16 / static_cast<int>(sizeof(T));
  static constexpr int kChunks = kDim / kChunk;
  static constexpr int kPitch = kDim;
  PX_DEVICE static int Offset(int row, int chunk) { return row * kPitch + chunk * kChunk; }
};

}  // namespace baton::cuda
