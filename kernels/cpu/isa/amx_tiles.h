// AMX's eight tile registers as every kernel here uses them: four sums of 16 × 16 floats (0 … 3) from two left tiles of
// 16 rows × 32 bf16 (4, 5) and two right tiles of 16 pairs of k × 16 columns (6, 7).
//
// A product adds, for every pair of k, the sum of two bf16 products to an f32: the bits of an output depend on its row
// and its column alone. Subnormal inputs and sums count as zero.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/isa/bf16_tiles.h"

namespace {

/// Sets the registers for left tiles of `rows0` and `rows1` ≤ 16 rows, for as long as it lives. One at a time.
class TileRegisters {
 public:
  TileRegisters(int rows0, int rows1) {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    for (int t = 0; t < 8; ++t) {
      config.row_bytes[t] = 64;
      config.rows[t] = kTileSide;
    }
    config.rows[0] = config.rows[1] = config.rows[4] = static_cast<uint8_t>(rows0);
    config.rows[2] = config.rows[3] = config.rows[5] = static_cast<uint8_t>(rows1);
    _tile_loadconfig(&config);
  }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
  ~TileRegisters() { _tile_release(); }
};

/// Tiles of one side of a product: step s at `first` + s · step_bytes.
struct TileRun {
  const char* first = nullptr;
  int64_t step_bytes = kTileBytes;
  int64_t ahead = 0;  ///< bytes after a tile that are asked for as it is used; 0: none. Tiles do not fetch themselves.
};

inline void Prefetch(const char* at) {
  for (int line = 0; line < kTileBytes; line += 64) _mm_prefetch(at + line, _MM_HINT_T0);
}

/// sums[two left runs][two right runs] = left · right over `steps` tiles of k; left1 and right1 only where there are
/// two.
template <bool kTwoLeft, bool kTwoRight>
inline void MultiplyTiles(const TileRun& left, const char* left1, const TileRun& right, const char* right1, int steps) {
  _tile_zero(0);
  if constexpr (kTwoRight) _tile_zero(1);
  if constexpr (kTwoLeft) _tile_zero(2);
  if constexpr (kTwoLeft && kTwoRight) _tile_zero(3);
  const char *left0 = left.first, *right0 = right.first;
  for (int s = 0; s < steps; ++s) {
    _tile_loadd(4, left0, 64);
    _tile_loadd(6, right0, 64);
    if (left.ahead > 0) Prefetch(left0 + left.ahead);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kTwoRight) {
      _tile_loadd(7, right1, 64);
      if (right.ahead > 0) Prefetch(right0 + right.ahead);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kTwoLeft) {
      _tile_loadd(5, left1, 64);
      if (left.ahead > 0) Prefetch(left1 + left.ahead);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (kTwoRight) {
      if (right.ahead > 0) Prefetch(right1 + right.ahead);
      if constexpr (kTwoLeft) _tile_dpbf16ps(3, 5, 7);
    }
    left0 += left.step_bytes;
    left1 += left.step_bytes;
    right0 += right.step_bytes;
    right1 += right.step_bytes;
  }
}

/// The sums into `to`, [32][stride] f32 of which two left tiles are rows 0 … 31 and two right tiles columns 0 … 31.
template <bool kTwoLeft, bool kTwoRight>
inline void StoreTiles(float* to, int64_t stride) {
  _tile_stored(0, to, stride * 4);
  if constexpr (kTwoRight) _tile_stored(1, to + kTileSide, stride * 4);
  if constexpr (kTwoLeft) _tile_stored(2, to + kTileSide * stride, stride * 4);
  if constexpr (kTwoLeft && kTwoRight) _tile_stored(3, to + kTileSide * stride + kTileSide, stride * 4);
}

}  // namespace
