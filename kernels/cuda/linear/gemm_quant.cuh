// GEMM with weights in codes (W4A16, W8A16: integers, or float8 e4m3): out[M, N] = x[M, K] · dequant(w)[N, K]ᵀ + bias,
// bf16 x, f32 sums.
//
// Weights are kept in the order of mma's B fragments (quant_layout.h): a lane's share of 16 columns × 64 k is one (4
// bit) or two (8 bit) 16-byte words, so there is no ldmatrix and no transpose. Dequantized in registers to bf16((q −
// zero) · scale), of e4m3 bf16(q · scale): the bits of a GEMM over weights dequantized beforehand. One accumulator per
// output, k in order: a row's bits do not depend on M. Floor at M ≤ 16: N·K·bits/8 + 4·N·K/group bytes of weights
// (4096² int4, group 128: 8.9 MB, 2.1 µs at 4.3 TB/s); beyond, 2·M·N·K FLOP at 790 TFLOP/s.
#pragma once

#include "kernels/cuda/linear/gemm.cuh"

namespace baton::cuda {

/// What an element of a weight is on the device.
enum class WeightFormat : uint8_t { kBf16, kInt8, kInt4, kE4m3 };
/// 16-byte words of a lane's share of 16 columns × 64 k in codes.
PX_BOTH constexpr int QuantWords(WeightFormat format) { return format == WeightFormat::kInt4 ? 1 : 2; }

/// Scale and zero of columns n and n + 8 of a block of 16, as bf16 pairs; zero is stored as 128 + zero (4 bit) or zero.
/// Of e4m3, which has no zeros: the f32 scales of both columns, n's in `scales` and the other in `zeros`.
struct QuantMeta {
  uint32_t scales, zeros;
};
static_assert(sizeof(QuantMeta) == 8);

template <typename Out>
struct QuantGemmParams {
  const px::bf16* x;      ///< [m, k], rows 16-byte aligned
  const px::U128* w;      ///< [n blocks of 16, k steps of 64, QuantWords, 32 lanes]
  const QuantMeta* meta;  ///< [n blocks of 16, QuantGroups(k, group), 8]
  const float* bias;      ///< [n] or null
  Out* out;               ///< [m, n]
  int64_t x_stride, out_stride;
  int m, n, k;  ///< k a multiple of 8
  int group;    ///< 32, a multiple of 64, or k; k a multiple of it
};

/// K steps of a layout; what is beyond k has scale 0.
PX_BOTH int QuantSteps(int k) { return (k + kGemmStepK - 1) / kGemmStepK; }
/// Rows of meta per block of 16 columns: one per group, two per step when groups are 32 wide.
PX_BOTH int QuantGroups(int k, int group) { return group == 32 ? QuantSteps(k) * 2 : k / group; }

/// Two stages' worth of meta rows when groups are 32 wide.
constexpr int kQuantMetaRows = 2;

template <typename Tile, WeightFormat kFormat>
struct QuantGemmShared {
  px::bf16 x[Tile::kStages][Tile::kRows * kGemmStepK];
  px::U128 w[Tile::kStages][Tile::kCols / 16][32 * QuantWords(kFormat)];
  QuantMeta meta[Tile::kStages][Tile::kCols / 16][kQuantMetaRows * 8];
};
using QuantTileSmall = GemmTile<16, 64, 1, 4, 6>;
using QuantTileMedium = GemmTile<64, 64, 2, 2, 4>;

template <typename Tile, WeightFormat kFormat, typename Out>
PX_DEVICE void FetchQuantStep(QuantGemmShared<Tile, kFormat>& smem, const QuantGemmParams<Out>& p, int step, int row0,
                              int col0) {
  constexpr int kChunks = GemmLayout::kChunks, kWords = 32 * QuantWords(kFormat), kMetaChunks = kQuantMetaRows * 4;
  const int stage = step % Tile::kStages, k0 = step * kGemmStepK, steps = QuantSteps(p.k);
  PX_UNROLL
  for (int i = px::ThreadX(); i < Tile::kRows * kChunks; i += Tile::kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    const bool valid = row0 + row < p.m && k0 + chunk * 8 < p.k;
    px::CpAsync16(smem.x[stage] + GemmLayout::Offset(row, chunk),
                  p.x + (valid ? (row0 + row) * p.x_stride + k0 + chunk * 8 : 0), valid);
  }
  PX_UNROLL
  for (int i = px::ThreadX(); i < Tile::kCols / 16 * kWords; i += Tile::kThreads) {
    const int block = i / kWords, word = i % kWords;
    const bool valid = col0 + block * 16 < p.n;
    px::CpAsync16(&smem.w[stage][block][word],
                  p.w + (valid ? (static_cast<int64_t>(col0 / 16 + block) * steps + step) * kWords + word : 0), valid);
  }
  const int groups = QuantGroups(p.k, p.group), rows = p.group == 32 ? 2 : 1, first = k0 / p.group;
  for (int i = px::ThreadX(); i < Tile::kCols / 16 * kMetaChunks; i += Tile::kThreads) {
    const int block = i / kMetaChunks, chunk = i % kMetaChunks;
    const bool valid = col0 + block * 16 < p.n && chunk < rows * 4;
    px::CpAsync16(&smem.meta[stage][block][chunk * 2],
                  p.meta + (valid ? (static_cast<int64_t>(col0 / 16 + block) * groups + first) * 8 + chunk * 2 : 0),
                  valid);
  }
}

/// b fragments of the two 8-column tiles of 16 columns × 16 k, from word `w` (4 bit) or two words (8 bit).
PX_DEVICE void Dequantize4(uint32_t w, const QuantMeta& meta, uint32_t (&b)[4]) {
  constexpr uint32_t kOnes = 0x3F803F80u, kHigh = 0x43004300u, kSigns = 0x80008000u;
  PX_UNROLL
  for (int i = 0; i < 4; ++i) {
    constexpr int kAndOr = (0xF0 & 0xCC) | 0xAA;
    const uint32_t biased = px::Lop3<kAndOr>(w >> (4 * i), 0x000F000Fu, kHigh);  // 128 + q, exact in bf16
    // Tiles 0 and 1 are columns n and n + 8: the low and the high half of the meta words, both k in one register.
    const uint32_t zero = i < 2 ? (meta.zeros & 0xFFFFu) * 0x10001u : (meta.zeros >> 16) * 0x10001u;
    const uint32_t scale = i < 2 ? (meta.scales & 0xFFFFu) * 0x10001u : (meta.scales >> 16) * 0x10001u;
    const uint32_t centred = px::FmaBf16x2(biased, kOnes, zero ^ kSigns);  // exact
    b[i] = px::FmaBf16x2(centred, scale, kSigns);                          // one rounding; −0 adds nothing
  }
}
PX_DEVICE void Dequantize8(uint32_t low, uint32_t high, const QuantMeta& meta, uint32_t (&b)[4]) {
  PX_UNROLL
  for (int i = 0; i < 4; ++i) {
    const uint32_t pair = (i < 2 ? low : high) >> (i % 2 * 16);
    const float zero = px::Bf16BitsToFloat(i < 2 ? meta.zeros & 0xFFFFu : meta.zeros >> 16);
    const float scale = px::Bf16BitsToFloat(i < 2 ? meta.scales & 0xFFFFu : meta.scales >> 16);
    const float x = static_cast<float>(pair & 0xFFu) - zero, y = static_cast<float>(pair >> 8 & 0xFFu) - zero;
    b[i] = px::PackBf16(px::Mul(x, scale), px::Mul(y, scale));
  }
}

PX_DEVICE void DequantizeE4m3(uint32_t low, uint32_t high, const QuantMeta& meta, uint32_t (&b)[4]) {
  PX_UNROLL
  for (int i = 0; i < 4; ++i) {
    const px::F2 pair = px::UnpackE4m3(static_cast<uint16_t>((i < 2 ? low : high) >> (i % 2 * 16)));
    const float scale = px::BitCast<float>(i < 2 ? meta.scales : meta.zeros);
    b[i] = px::PackBf16(px::Mul(pair.x, scale), px::Mul(pair.y, scale));
  }
}
/// b fragments of k16 number kk from a lane's words of a step.
template <WeightFormat kFormat>
PX_DEVICE void DequantizeFragment(const px::U128 (&words)[QuantWords(kFormat)], int kk, const QuantMeta& meta,
                                  uint32_t (&b)[4]) {
  if constexpr (kFormat == WeightFormat::kInt4) {
    Dequantize4(words[0].w[kk], meta, b);
  } else {
    const uint32_t low = words[kk / 2].w[kk % 2 * 2], high = words[kk / 2].w[kk % 2 * 2 + 1];
    if constexpr (kFormat == WeightFormat::kE4m3)
      DequantizeE4m3(low, high, meta, b);
    else
      Dequantize8(low, high, meta, b);
  }
}

template <typename Tile, WeightFormat kFormat, typename Out>
PX_DEVICE void MultiplyQuantStep(float (&d)[Tile::kWarpRows / 16][Tile::kWarpCols / 8][4],
                                 QuantGemmShared<Tile, kFormat>& smem, int stage, int warp_row, int warp_col,
                                 bool narrow_groups) {
  const int lane = px::Lane();
  const px::bf16* x = smem.x[stage] + warp_row * kGemmStepK;
  PX_UNROLL
  for (int j = 0; j < Tile::kWarpCols / 16; ++j) {
    const int block = warp_col / 16 + j;
    px::U128 words[QuantWords(kFormat)];
    PX_UNROLL
    for (int i = 0; i < QuantWords(kFormat); ++i) words[i] = px::LoadShared(&smem.w[stage][block][i * 32 + lane]);
    PX_UNROLL
    for (int kk = 0; kk < kGemmStepK / 16; ++kk) {
      const QuantMeta meta = px::LoadShared(&smem.meta[stage][block][(narrow_groups ? kk / 2 : 0) * 8 + lane / 4]);
      uint32_t b[4];
      DequantizeFragment<kFormat>(words, kk, meta, b);
      PX_UNROLL
      for (int i = 0; i < Tile::kWarpRows / 16; ++i) {
        uint32_t a[4];
        px::LdMatrixX4(a, x + GemmLayout::Offset(i * 16 + lane % 16, kk * 2 + lane / 16));
        px::MmaBf16(d[i][2 * j], a, b[0], b[1]);
        px::MmaBf16(d[i][2 * j + 1], a, b[2], b[3]);
      }
    }
  }
}

template <typename Tile, WeightFormat kFormat, typename Out>
PX_KERNEL void PX_BOUNDS(Tile::kThreads) QuantGemmKernel(const PX_GRID_CONST QuantGemmParams<Out> p) {
  using Shared = QuantGemmShared<Tile, kFormat>;
  PX_SHARED(Shared, smem);
  const int row0 = px::BlockX() * Tile::kRows, col0 = px::BlockY() * Tile::kCols;
  const int warp_row = px::WarpIndex() / Tile::kWarpsN * Tile::kWarpRows,
            warp_col = px::WarpIndex() % Tile::kWarpsN * Tile::kWarpCols;
  const int steps = QuantSteps(p.k);
  float d[Tile::kWarpRows / 16][Tile::kWarpCols / 8][4] = {};

  px::GridDependencyWait();
  PX_UNROLL
  for (int s = 0; s < Tile::kStages - 1; ++s) {
    if (s < steps) FetchQuantStep<Tile, kFormat>(smem, p, s, row0, col0);
    px::CpAsyncCommit();
  }
  for (int s = 0; s < steps; ++s) {
    px::CpAsyncWait<Tile::kStages - 2>();
    px::SyncThreads();
    if (s + Tile::kStages - 1 < steps) FetchQuantStep<Tile, kFormat>(smem, p, s + Tile::kStages - 1, row0, col0);
    px::CpAsyncCommit();
    MultiplyQuantStep<Tile, kFormat, Out>(d, smem, s % Tile::kStages, warp_row, warp_col, p.group == 32);
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

template <WeightFormat kFormat, typename Out>
void LaunchQuantGemm(gpu::Stream& stream, const QuantGemmParams<Out>& p, bool programmatic = false) {
  if (p.m == 0 || p.n == 0) return;
  auto launch = [&]<typename Tile>(Tile) {
    const unsigned rows = static_cast<unsigned>((p.m + Tile::kRows - 1) / Tile::kRows);
    const unsigned cols = static_cast<unsigned>((p.n + Tile::kCols - 1) / Tile::kCols);
    gpu::Launch(stream,
                {.grid = {rows, cols},
                 .block = {Tile::kThreads},
                 .shared_bytes = sizeof(QuantGemmShared<Tile, kFormat>),
                 .programmatic = programmatic},
                &QuantGemmKernel<Tile, kFormat, Out>, p);
  };
  if (p.m <= QuantTileSmall::kRows)
    launch(QuantTileSmall{});
  else
    launch(QuantTileMedium{});
}

}  // namespace baton::cuda
