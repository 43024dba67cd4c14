// How rows of a tile lie in shared memory.
#pragma once

#include "kernels/px/px.h"

namespace baton::cuda {

/// Rows of kDim elements in shared memory, 16-byte chunks placed so that ldmatrix has no bank conflicts: XOR with the
/// row where a row is a multiple of 128 bytes, else one chunk of padding.
template <typename T, int kDim>
struct TileLayout {
  static constexpr int kChunk = 16 / static_cast<int>(sizeof(T));
  static constexpr int kChunks = kDim / kChunk;
  static constexpr bool kSwizzled = kChunks % 8 == 0;
  static constexpr int kPitch = kSwizzled ? kDim : kDim + kChunk;
  PX_DEVICE static int Offset(int row, int chunk) {
    return row * kPitch + (kSwizzled ? chunk ^ (row & 7) : chunk) * kChunk;
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
