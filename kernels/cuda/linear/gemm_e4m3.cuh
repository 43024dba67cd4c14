// GEMM of e4m3 with e4m3 (W8A8): out[M, N] = Σ over groups of scale(row, group) · scale(column, group) · Σ x · w +
// bias, on warp-level tensor cores (mma.sync m16n8k32, sm_89 and later), f32 sums.
//
// Codes of an output lie in a row, as those of a token (round_inputs.cuh). Products of up to 128 inputs of one group
// are summed from zero in mma's accumulator and added to the output's with one fma by both scales, in ascending order
// of K, whatever the tile: a row's bits do not depend on M (Promise A). No split-K. Floor: max(N·K + 4·N·K/group + M·K
// + out bytes at 4.3 TB/s, 2·M·N·K FLOP at 1,500 TFLOP/s): 2,048 × 4,096 × 4,096 46 µs, M = 16 4 µs. On sm_90 mma.sync
// was measured at a fifth of that: gemm_e4m3_wgmma.cuh is its form there.
#pragma once

#include "kernels/cuda/linear/gemm_quant.cuh"
#include "kernels/cuda/linear/round_inputs.cuh"

namespace baton::cuda {

template <typename Out>
struct E4m3GemmParams {
  const px::e4m3* x;       ///< [m, RoundedPitch(k)], as round_inputs.cuh writes it
  const float* x_scales;   ///< [k / group, x_scale_stride]
  const px::e4m3* w;       ///< [n, RoundedPitch(k)], zero from k on
  const QuantMeta* meta;   ///< as QuantGemmParams::meta
  const float* bias;       ///< [n] or null
  Out* out;                ///< [m, n]
  int64_t x_scale_stride;  ///< m rounded up to kE4m3PadM
  int64_t out_stride;
  int m, n, k;  ///< k a multiple of 8
  int group;    ///< 32, a multiple of 64, or k; k a multiple of it
};

constexpr int kE4m3PadM = 128;
constexpr int kE4m3StepK = kRoundedPadK;    ///< one row of a stage: 128 bytes
constexpr int kE4m3Mmas = kE4m3StepK / 32;  ///< of a step

using E4m3TileSmall = GemmTile<16, 32, 1, 2, 8>;
using E4m3TileMedium = GemmTile<64, 64, 2, 2, 4>;
using E4m3TileLarge = GemmTile<128, 128, 2, 4, 3>;
using E4m3Layout = TileLayout<px::e4m3, kE4m3StepK>;

/// Scales of a stage: row i is that of the i-th group that the step meets, four where they are 32 wide.
template <typename Tile>
struct E4m3GemmShared {
  px::e4m3 x[Tile::kStages][Tile::kRows * kE4m3StepK];
  px::e4m3 w[Tile::kStages][Tile::kCols * kE4m3StepK];
  QuantMeta meta[Tile::kStages][Tile::kCols / 16][kE4m3Mmas * 8];
  float x_scales[Tile::kStages][kE4m3Mmas][Tile::kRows];
};
static_assert(sizeof(E4m3GemmShared<E4m3TileLarge>) <= 227 * 1024);

/// The group of input k; beyond the last input its group.
PX_DEVICE int E4m3Group(int k, int size, int group) { return (k < size ? k : size - 1) / group; }

/// Starts the copies of one K step. Rows of x beyond m and columns beyond n become zero.
template <typename Tile, typename Out>
PX_DEVICE void FetchE4m3Step(E4m3GemmShared<Tile>& smem, const E4m3GemmParams<Out>& p, int step, int row0, int col0) {
  const int stage = step % Tile::kStages, k0 = step * kE4m3StepK;
  const int64_t pitch = RoundedPitch(p.k);
  const auto fetch = [&](px::e4m3* to, const px::e4m3* from, int first, int end, int rows) {
    PX_UNROLL
    for (int i = px::ThreadX(); i < rows * E4m3Layout::kChunks; i += Tile::kThreads) {
      const int row = i / E4m3Layout::kChunks, chunk = i % E4m3Layout::kChunks;
      const bool valid = first + row < end;
      px::CpAsync16(to + E4m3Layout::Offset(row, chunk), from + (valid ? (first + row) * pitch + k0 + chunk * 16 : 0),
                    valid);
    }
  };
  fetch(smem.x[stage], p.x, row0, p.m, Tile::kRows);
  fetch(smem.w[stage], p.w, col0, p.n, Tile::kCols);
  const int first = E4m3Group(k0, p.k, p.group), met = E4m3Group(k0 + kE4m3StepK - 1, p.k, p.group) - first + 1;
  const int rows = QuantGroups(p.k, p.group);
  for (int i = px::ThreadX(); i < Tile::kCols / 16 * met * 4; i += Tile::kThreads) {
    const int block = i / (met * 4), chunk = i % (met * 4);
    const bool valid = col0 + block * 16 < p.n;
    px::CpAsync16(&smem.meta[stage][block][chunk * 2],
                  p.meta + (valid ? (static_cast<int64_t>(col0 / 16 + block) * rows + first) * 8 + chunk * 2 : 0),
                  valid);
  }
  for (int i = px::ThreadX(); i < met * (Tile::kRows / 4); i += Tile::kThreads) {
    const int g = i / (Tile::kRows / 4), chunk = i % (Tile::kRows / 4);
    px::CpAsync16(&smem.x_scales[stage][g][chunk * 4], p.x_scales + (first + g) * p.x_scale_stride + row0 + chunk * 4,
                  true);
  }
}

/// d += sums · both scales of the i-th group of the stage; the sums begin anew.
template <typename Tile>
PX_DEVICE void AddE4m3Sums(float (&d)[Tile::kWarpRows / 16][Tile::kWarpCols / 8][4],
                           float (&sums)[Tile::kWarpRows / 16][Tile::kWarpCols / 8][4],
                           const E4m3GemmShared<Tile>& smem, int stage, int i_group, int warp_row, int warp_col) {
  const int lane = px::Lane();
  float row_scales[Tile::kWarpRows / 16][2];
  PX_UNROLL
  for (int i = 0; i < Tile::kWarpRows / 16; ++i) {
    PX_UNROLL
    for (int half = 0; half < 2; ++half)
      row_scales[i][half] = px::LoadShared(&smem.x_scales[stage][i_group][warp_row + i * 16 + half * 8 + lane / 4]);
  }
  PX_UNROLL
  for (int j = 0; j < Tile::kWarpCols / 16; ++j) {
    // Of columns c and c + 1 of both tiles of 8: {c, c + 8, c + 1, c + 9}.
    const px::U128 scales = px::LoadShared(
        reinterpret_cast<const px::U128*>(&smem.meta[stage][warp_col / 16 + j][i_group * 8 + lane % 4 * 2]));
    PX_UNROLL
    for (int i = 0; i < Tile::kWarpRows / 16; ++i) {
      PX_UNROLL
      for (int e = 0; e < 8; ++e) {
        const int tile = 2 * j + e / 4, at = e % 4;
        const float scale = px::Mul(row_scales[i][at / 2], px::BitCast<float>(scales.w[at % 2 * 2 + e / 4]));
        d[i][tile][at] = px::Fma(sums[i][tile][at], scale, d[i][tile][at]);
        sums[i][tile][at] = 0.0f;
      }
    }
  }
}

/// One K step of a warp's tile. `per_group`: mmas whose sums share their scales.
template <typename Tile, typename Out>
PX_DEVICE void MultiplyE4m3Step(float (&d)[Tile::kWarpRows / 16][Tile::kWarpCols / 8][4],
                                float (&sums)[Tile::kWarpRows / 16][Tile::kWarpCols / 8][4],
                                const E4m3GemmShared<Tile>& smem, const E4m3GemmParams<Out>& p, int step, int warp_row,
                                int warp_col, int per_group) {
  const int lane = px::Lane(), stage = step % Tile::kStages, k0 = step * kE4m3StepK;
  const px::e4m3* const x = smem.x[stage] + warp_row * kE4m3StepK;
  const px::e4m3* const w = smem.w[stage] + warp_col * kE4m3StepK;
  PX_UNROLL
  for (int q = 0; q < kE4m3Mmas; ++q) {
    uint32_t a[Tile::kWarpRows / 16][4];
    PX_UNROLL
    for (int i = 0; i < Tile::kWarpRows / 16; ++i)
      px::LdMatrixX4(a[i], x + E4m3Layout::Offset(i * 16 + lane % 16, q * 2 + lane / 16));
    PX_UNROLL
    for (int j = 0; j < Tile::kWarpCols / 16; ++j) {
      uint32_t b[4];  // of columns 0 … 7 and 8 … 15, then of both the other 16 of K
      px::LdMatrixX4(b, w + E4m3Layout::Offset(j * 16 + lane % 16, q * 2 + lane / 16));
      PX_UNROLL
      for (int i = 0; i < Tile::kWarpRows / 16; ++i) {
        px::MmaE4m3(sums[i][2 * j], a[i], b[0], b[2]);
        px::MmaE4m3(sums[i][2 * j + 1], a[i], b[1], b[3]);
      }
    }
    if ((q + 1) % per_group == 0) {
      const int i_group = E4m3Group(k0 + q * 32, p.k, p.group) - E4m3Group(k0, p.k, p.group);
      AddE4m3Sums<Tile>(d, sums, smem, stage, i_group, warp_row, warp_col);
    }
  }
}

template <typename Tile, typename Out>
PX_KERNEL void PX_BOUNDS(Tile::kThreads) E4m3GemmKernel(const PX_GRID_CONST E4m3GemmParams<Out> p) {
  using Shared = E4m3GemmShared<Tile>;
  PX_SHARED(Shared, smem);
  const int row0 = px::BlockX() * Tile::kRows, col0 = px::BlockY() * Tile::kCols;
  const int warp_row = px::WarpIndex() / Tile::kWarpsN * Tile::kWarpRows,
            warp_col = px::WarpIndex() % Tile::kWarpsN * Tile::kWarpCols;
  const int steps = static_cast<int>(RoundedPitch(p.k)) / kE4m3StepK;
  const int per_group = p.group == 32 ? 1 : p.group == p.k || p.group % kE4m3StepK == 0 ? kE4m3Mmas : 2;
  float d[Tile::kWarpRows / 16][Tile::kWarpCols / 8][4] = {}, sums[Tile::kWarpRows / 16][Tile::kWarpCols / 8][4] = {};

  px::GridDependencyWait();
  PX_UNROLL
  for (int s = 0; s < Tile::kStages - 1; ++s) {
    if (s < steps) FetchE4m3Step<Tile>(smem, p, s, row0, col0);
    px::CpAsyncCommit();
  }
  for (int s = 0; s < steps; ++s) {
    px::CpAsyncWait<Tile::kStages - 2>();
    px::SyncThreads();  // step s has come for everybody, and nobody reads step s - 1 any more
    if (s + Tile::kStages - 1 < steps) FetchE4m3Step<Tile>(smem, p, s + Tile::kStages - 1, row0, col0);
    px::CpAsyncCommit();
    MultiplyE4m3Step<Tile>(d, sums, smem, p, s, warp_row, warp_col, per_group);
  }
  px::GridDependencyRelease();
  const GemmParams<Out> write{nullptr, nullptr, p.bias, p.out, 0, 0, p.out_stride, p.m, p.n, p.k};
  const int row = row0 + warp_row + px::Lane() / 4, col = col0 + warp_col + px::Lane() % 4 * 2;
  PX_UNROLL
  for (int i = 0; i < Tile::kWarpRows / 16; ++i) {
    PX_UNROLL
    for (int j = 0; j < Tile::kWarpCols / 8; ++j) {
      StoreGemmPair(write, row + i * 16, col + j * 8, d[i][j][0], d[i][j][1]);
      StoreGemmPair(write, row + i * 16 + 8, col + j * 8, d[i][j][2], d[i][j][3]);
    }
  }
}

template <typename Out>
void LaunchE4m3Gemm(gpu::Stream& stream, const E4m3GemmParams<Out>& p, bool programmatic = false) {
  if (p.m == 0 || p.n == 0) return;
  auto launch = [&]<typename Tile>(Tile) {
    const unsigned rows = static_cast<unsigned>((p.m + Tile::kRows - 1) / Tile::kRows);
    const unsigned cols = static_cast<unsigned>((p.n + Tile::kCols - 1) / Tile::kCols);
    gpu::Launch(stream,
                {.grid = {rows, cols},
                 .block = {Tile::kThreads},
                 .shared_bytes = sizeof(E4m3GemmShared<Tile>),
                 .programmatic = programmatic},
                &E4m3GemmKernel<Tile, Out>, p);
  };
  if (p.m <= E4m3TileSmall::kRows)
    launch(E4m3TileSmall{});
  else if (p.m <= 2 * E4m3TileMedium::kRows)
    launch(E4m3TileMedium{});
  else
    launch(E4m3TileLarge{});
}

}  // namespace baton::cuda
