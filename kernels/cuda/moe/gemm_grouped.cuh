// Grouped GEMM for mixtures of experts: rows lie by expert, as moe_lists.cuh lists them, and expert e's rows meet
// expert e's weight: out[r] = x[token_of_row[r]] · w[e]ᵀ + bias[e] for offsets[e] ≤ r < offsets[e + 1].
//
// The tiles and loops of gemm.cuh: a row has the bits that a GEMM with its expert's weight gives it, whatever the other
// rows chose. Nothing is planned on the host, so a graph replays it: the grid covers the worst case, a block finds its
// tile in the offsets and ends when there is none.
// Floor: the weights of the experts that have rows, 2·E·N·K bytes (each once while all its rows fit one tile), and
// 2·rows·(K + N) bytes; 2·rows·N·K FLOP. 64 tokens, k = 8, 128 experts of 1536 × 4096: all 128 read, 1.6 GB, 375 µs at
// 4.3 TB/s.
#pragma once

#include "kernels/cuda/linear/gemm.cuh"
#include "kernels/cuda/moe/moe_limits.h"

namespace baton::cuda {

template <typename Out>
struct GroupedGemmParams {
  const px::bf16* x;            ///< [tokens, k], or [rows, k] without token_of_row; rows 16-byte aligned
  const int32_t* token_of_row;  ///< [rows], or null: row r reads x[r]
  const int32_t* offsets;       ///< [experts + 1]
  const px::bf16* w;            ///< [experts][n rounded up to kGemmPadN, w_stride], zero beyond n and k
  const float* bias;            ///< [experts, n] or null
  Out* out;                     ///< [rows, n]
  int64_t x_stride, w_stride, expert_stride, out_stride;
  int rows, n, k, experts;  ///< rows = offsets[experts]; k a multiple of 8; experts ≤ kMaxExperts
};

struct GroupTile {
  int expert;      ///< −1: there is no such tile
  int first, end;  ///< rows of the tile begin here; the expert's rows end there
};

/// Tile number `tile` when every expert's rows are cut into tiles of kRows. The same answer in every warp and lane.
template <int kRows>
PX_DEVICE GroupTile FindGroupTile(const int32_t* offsets, int experts, int tile) {
  constexpr int kPerLane = kMaxExperts / 32;
  const int lane = px::Lane();
  int tiles[kPerLane], sum = 0;
  PX_UNROLL
  for (int j = 0; j < kPerLane; ++j) {
    const int e = lane * kPerLane + j;
    tiles[j] = e < experts ? (px::Load(offsets + e + 1) - px::Load(offsets + e) + kRows - 1) / kRows : 0;
    sum += tiles[j];
  }
  int up_to = sum;
  PX_UNROLL
  for (int m = 1; m < 32; m *= 2) {
    const int other = px::Shuffle(up_to, lane >= m ? lane - m : lane);
    up_to += lane >= m ? other : 0;
  }
  int at = up_to - sum, expert = -1, number = 0;
  PX_UNROLL
  for (int j = 0; j < kPerLane; ++j) {
    if (tile >= at && tile < at + tiles[j]) {
      expert = lane * kPerLane + j;
      number = tile - at;
    }
    at += tiles[j];
  }
  const uint32_t owner = px::Ballot(expert >= 0);
  if (owner == 0) return {-1, 0, 0};
  const int source = px::PopCount((owner & (0u - owner)) - 1);
  expert = px::Shuffle(expert, source);
  return {expert, px::Load(offsets + expert) + px::Shuffle(number, source) * kRows, px::Load(offsets + expert + 1)};
}

template <typename Tile, typename Out>
PX_KERNEL void PX_BOUNDS(Tile::kThreads) GroupedGemmKernel(const PX_GRID_CONST GroupedGemmParams<Out> p) {
  using Shared = GemmShared<Tile>;
  constexpr int kChunks = GemmLayout::kChunks, kCopies = Tile::kRows * kChunks / Tile::kThreads;
  static_assert(kCopies * Tile::kThreads == Tile::kRows * kChunks);
  PX_SHARED(Shared, smem);
  px::GridDependencyWait();
  const GroupTile tile = FindGroupTile<Tile::kRows>(p.offsets, p.experts, px::BlockX());
  if (tile.expert < 0) return;
  const int col0 = px::BlockY() * Tile::kCols, steps = (p.k + kGemmStepK - 1) / kGemmStepK;
  const px::bf16* w = p.w + tile.expert * p.expert_stride + col0 * p.w_stride;
  const int chunk = px::ThreadX() % kChunks;  // the same in all copies of a thread
  const px::bf16* rows[kCopies];              // null: beyond the expert's rows
  PX_UNROLL
  for (int i = 0; i < kCopies; ++i) {
    const int row = tile.first + (px::ThreadX() + i * Tile::kThreads) / kChunks;
    rows[i] = nullptr;
    if (row < tile.end)
      rows[i] = p.x + (p.token_of_row != nullptr ? px::Load(p.token_of_row + row) : row) * p.x_stride + chunk * 8;
  }
  auto fetch = [&](int step) {
    if (step < steps) {
      const int stage = step % Tile::kStages, k0 = step * kGemmStepK;
      PX_UNROLL
      for (int i = 0; i < kCopies; ++i) {
        const int row = (px::ThreadX() + i * Tile::kThreads) / kChunks;
        const bool valid = rows[i] != nullptr && k0 + chunk * 8 < p.k;
        px::CpAsync16(smem.x[stage] + GemmLayout::Offset(row, chunk), valid ? rows[i] + k0 : p.x, valid);
      }
      PX_UNROLL
      for (int i = px::ThreadX(); i < Tile::kCols * kChunks; i += Tile::kThreads)
        px::CpAsync16(smem.w[stage] + GemmLayout::Offset(i / kChunks, chunk),
                      w + i / kChunks * p.w_stride + k0 + chunk * 8, true);
    }
    px::CpAsyncCommit();
  };
  const int warp_row = px::WarpIndex() / Tile::kWarpsN * Tile::kWarpRows,
            warp_col = px::WarpIndex() % Tile::kWarpsN * Tile::kWarpCols;
  float d[Tile::kWarpRows / 16][Tile::kWarpCols / 8][4] = {};
  PX_UNROLL
  for (int s = 0; s < Tile::kStages - 1; ++s) fetch(s);
  for (int s = 0; s < steps; ++s) {
    px::CpAsyncWait<Tile::kStages - 2>();
    px::SyncThreads();
    fetch(s + Tile::kStages - 1);
    const int stage = s % Tile::kStages;
    MultiplyGemmStep<Tile>(d, smem.x[stage] + warp_row * kGemmStepK, smem.w[stage] + warp_col * kGemmStepK);
  }
  px::GridDependencyRelease();
  const GemmParams<Out> write{
      nullptr,      nullptr,  p.bias != nullptr ? p.bias + static_cast<int64_t>(tile.expert) * p.n : nullptr,
      p.out,        0,        0,
      p.out_stride, tile.end, p.n,
      p.k};
  const int row = tile.first + warp_row + px::Lane() / 4, col = col0 + warp_col + px::Lane() % 4 * 2;
  PX_UNROLL
  for (int i = 0; i < Tile::kWarpRows / 16; ++i) {
    PX_UNROLL
    for (int j = 0; j < Tile::kWarpCols / 8; ++j) {
      StoreGemmPair(write, row + i * 16, col + j * 8, d[i][j][0], d[i][j][1]);
      StoreGemmPair(write, row + i * 16 + 8, col + j * 8, d[i][j][2], d[i][j][3]);
    }
  }
}

template <typename Tile, typename Out>
void LaunchGroupedGemmTile(gpu::Stream& stream, const GroupedGemmParams<Out>& p, bool programmatic) {
  // Σ ⌈rows of e / kRows⌉ over the experts that have rows is at most this.
  const unsigned tiles = static_cast<unsigned>(p.rows / Tile::kRows + (p.rows < p.experts ? p.rows : p.experts));
  gpu::Launch(stream,
              {.grid = {tiles, static_cast<unsigned>((p.n + Tile::kCols - 1) / Tile::kCols)},
               .block = {Tile::kThreads},
               .shared_bytes = sizeof(GemmShared<Tile>),
               .programmatic = programmatic},
              &GroupedGemmKernel<Tile, Out>, p);
}

/// The tile is chosen by the mean number of rows of an expert; bits do not depend on it.
template <typename Out>
void LaunchGroupedGemm(gpu::Stream& stream, const GroupedGemmParams<Out>& p, bool programmatic = false) {
  if (p.rows == 0 || p.n == 0) return;
  if (p.rows <= GemmTileSmall::kRows * p.experts)
    LaunchGroupedGemmTile<GemmTileSmall>(stream, p, programmatic);
  else
    LaunchGroupedGemmTile<GemmTileMedium>(stream, p, programmatic);
}

}  // namespace baton::cuda
