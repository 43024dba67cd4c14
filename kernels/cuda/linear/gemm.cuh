// Dense GEMM on warp-level tensor cores (mma.sync, sm_80 and later): out[M, N] = x[M, K] · w[N, K]ᵀ + bias, bf16 in,
// f32 sums.
//
// Every output is one f32 accumulator that takes the k16 products in ascending order, whatever the tile: a row's bits
// do not depend on M, so the tile is chosen by M freely (Promise A). No split-K. Floor: max(2·(M·K + N·K) + out bytes
// at 4.3 TB/s, 2·M·N·K FLOP at 790 TFLOP/s). mma.sync reaches about 60 % of the latter on Hopper (gemm_wgmma.cuh is the
// other form); M ≤ 16 streams the weights: 28 KiB in flight per block.
#pragma once

#include "kernels/cuda/tile_layout.cuh"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

template <typename Out>
struct GemmParams {
  const px::bf16* x;                       ///< [m, k], rows 16-byte aligned
  const px::bf16* w;                       ///< [n rounded up to kGemmPadN, w_stride], zero beyond n and k
  const float* bias;                       ///< [n] or null
  Out* out;                                ///< [m, n] bf16 or f32
  int64_t x_stride, w_stride, out_stride;  ///< w_stride: k rounded up to kGemmPadK
  int m, n, k;                             ///< k a multiple of 8
  bool adds = false;                       ///< f32: out += …
};

constexpr int kGemmPadN = 128, kGemmPadK = 64;
constexpr int kGemmStepK = 64;  ///< one row of a stage: 128 bytes

/// A block computes kRows × kCols with kWarpsM × kWarpsN warps.
template <int kRowsIn, int kColsIn, int kWarpsMIn, int kWarpsNIn, int kStagesIn>
struct GemmTile {
  static constexpr int kRows = kRowsIn, kCols = kColsIn, kWarpsM = kWarpsMIn, kWarpsN = kWarpsNIn, kStages = kStagesIn;
  static constexpr int kThreads = kWarpsM * kWarpsN * 32;
  static constexpr int kWarpRows = kRows / kWarpsM, kWarpCols = kCols / kWarpsN;
  static_assert(kWarpRows % 16 == 0 && kWarpCols % 16 == 0);
};
using GemmTileSmall = GemmTile<16, 32, 1, 2, 8>;
using GemmTileMedium = GemmTile<64, 64, 2, 2, 4>;
using GemmTileLarge = GemmTile<128, 128, 2, 4, 3>;

template <typename Tile>
struct GemmShared {
  px::bf16 x[Tile::kStages][Tile::kRows * kGemmStepK];
  px::bf16 w[Tile::kStages][Tile::kCols * kGemmStepK];
};
static_assert(2 * sizeof(GemmShared<GemmTileLarge>) <= 227 * 1024, "two blocks per SM");
using GemmLayout = TileLayout<px::bf16, kGemmStepK>;

/// Starts the copies of one K step. Rows of x beyond m and columns beyond k become zero.
template <typename Tile, typename Out>
PX_DEVICE void FetchGemmStep(GemmShared<Tile>& smem, const GemmParams<Out>& p, int step, int row0, int col0) {
  constexpr int kChunks = GemmLayout::kChunks;
  const int stage = step % Tile::kStages, k0 = step * kGemmStepK;
  PX_UNROLL
  for (int i = px::ThreadX(); i < Tile::kRows * kChunks; i += Tile::kThreads) {
    const int row = i / kChunks, chunk = i % kChunks, k = k0 + chunk * 8;
    const bool valid = row0 + row < p.m && k < p.k;
    px::CpAsync16(smem.x[stage] + GemmLayout::Offset(row, chunk), p.x + (valid ? (row0 + row) * p.x_stride + k : 0),
                  valid);
  }
  PX_UNROLL
  for (int i = px::ThreadX(); i < Tile::kCols * kChunks; i += Tile::kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    px::CpAsync16(smem.w[stage] + GemmLayout::Offset(row, chunk), p.w + (col0 + row) * p.w_stride + k0 + chunk * 8,
                  true);
  }
}

/// One K step of a warp's tile: d += x · wᵀ.
template <typename Tile>
PX_DEVICE void MultiplyGemmStep(float (&d)[Tile::kWarpRows / 16][Tile::kWarpCols / 8][4], const px::bf16* x,
                                const px::bf16* w) {
  const int lane = px::Lane();
  PX_UNROLL
  for (int kk = 0; kk < kGemmStepK / 16; ++kk) {
    uint32_t a[Tile::kWarpRows / 16][4];
    PX_UNROLL
    for (int i = 0; i < Tile::kWarpRows / 16; ++i)
      px::LdMatrixX4(a[i], x + GemmLayout::Offset(i * 16 + lane % 16, kk * 2 + lane / 16));
    PX_UNROLL
    for (int j = 0; j < Tile::kWarpCols / 16; ++j) {
      uint32_t b[4];
      px::LdMatrixX4(b, w + GemmLayout::Offset(j * 16 + (lane & 7) + lane / 16 * 8, kk * 2 + (lane >> 3 & 1)));
      PX_UNROLL
      for (int i = 0; i < Tile::kWarpRows / 16; ++i) {
        px::MmaBf16(d[i][2 * j], a[i], b[0], b[1]);
        px::MmaBf16(d[i][2 * j + 1], a[i], b[2], b[3]);
      }
    }
  }
}

/// Two neighbouring outputs of a row.
template <typename Out>
PX_DEVICE void StoreGemmPair(const GemmParams<Out>& p, int row, int col, float x, float y) {
  if (row >= p.m || col >= p.n) return;
  const bool both = col + 1 < p.n;
  if (p.bias != nullptr) {
    x = px::Add(x, px::Load(p.bias + col));
    if (both) y = px::Add(y, px::Load(p.bias + col + 1));
  }
  Out* out = p.out + row * p.out_stride + col;
  if constexpr (sizeof(Out) == 4) {
    if (p.adds) {
      x = px::Add(px::Load(out), x);
      if (both) y = px::Add(px::Load(out + 1), y);
    }
  }
  if (both && p.out_stride % 2 == 0) {
    if constexpr (sizeof(Out) == 4)
      px::Store(reinterpret_cast<px::F2*>(out), px::F2{x, y});
    else
      px::Store(reinterpret_cast<uint32_t*>(out), px::PackBf16(x, y));
    return;
  }
  px::Store(out, px::FromFloat<Out>(x));
  if (both) px::Store(out + 1, px::FromFloat<Out>(y));
}

template <typename Tile, typename Out>
PX_KERNEL void PX_BOUNDS(Tile::kThreads) GemmKernel(const PX_GRID_CONST GemmParams<Out> p) {
  using Shared = GemmShared<Tile>;
  PX_SHARED(Shared, smem);
  const int row0 = px::BlockX() * Tile::kRows, col0 = px::BlockY() * Tile::kCols;
  const int warp_row = px::WarpIndex() / Tile::kWarpsN * Tile::kWarpRows,
            warp_col = px::WarpIndex() % Tile::kWarpsN * Tile::kWarpCols;
  const int steps = (p.k + kGemmStepK - 1) / kGemmStepK;
  float d[Tile::kWarpRows / 16][Tile::kWarpCols / 8][4] = {};

  px::GridDependencyWait();
  PX_UNROLL
  for (int s = 0; s < Tile::kStages - 1; ++s) {
    if (s < steps) FetchGemmStep<Tile>(smem, p, s, row0, col0);
    px::CpAsyncCommit();
  }
  for (int s = 0; s < steps; ++s) {
    px::CpAsyncWait<Tile::kStages - 2>();
    px::SyncThreads();  // step s has come for everybody, and nobody reads step s - 1 any more
    if (s + Tile::kStages - 1 < steps) FetchGemmStep<Tile>(smem, p, s + Tile::kStages - 1, row0, col0);
    px::CpAsyncCommit();
    const int stage = s % Tile::kStages;
    MultiplyGemmStep<Tile>(d, smem.x[stage] + warp_row * kGemmStepK, smem.w[stage] + warp_col * kGemmStepK);
  }
  px::GridDependencyRelease();
  const int row = row0 + warp_row + px::Lane() / 4, col = col0 + warp_col + px::Lane() % 4 * 2;
  PX_UNROLL
  for (int i = 0; i < Tile::kWarpRows / 16; ++i) {
    PX_UNROLL
    for (int j = 0; j < Tile::kWarpCols / 8; ++j) {
      StoreGemmPair(p, row + i * 16, col + j * 8, d[i][j][0], d[i][j][1]);
      StoreGemmPair(p, row + i * 16 + 8, col + j * 8, d[i][j][2], d[i][j][3]);
    }
  }
}

template <typename Tile, typename Out>
void LaunchGemmTile(gpu::Stream& stream, const GemmParams<Out>& p, bool programmatic) {
  const unsigned rows = static_cast<unsigned>((p.m + Tile::kRows - 1) / Tile::kRows);
  const unsigned cols = static_cast<unsigned>((p.n + Tile::kCols - 1) / Tile::kCols);
  gpu::Launch(stream,
              {.grid = {rows, cols},
               .block = {Tile::kThreads},
               .shared_bytes = sizeof(GemmShared<Tile>),
               .programmatic = programmatic},
              &GemmKernel<Tile, Out>, p);
}

template <typename Out>
void LaunchGemm(gpu::Stream& stream, const GemmParams<Out>& p, bool programmatic = false) {
  if (p.m == 0 || p.n == 0) return;
  if (p.m <= GemmTileSmall::kRows)
    LaunchGemmTile<GemmTileSmall>(stream, p, programmatic);
  else if (p.m <= 2 * GemmTileMedium::kRows)
    LaunchGemmTile<GemmTileMedium>(stream, p, programmatic);
  else
    LaunchGemmTile<GemmTileLarge>(stream, p, programmatic);
}

}  // namespace baton::cuda
