// Dense GEMM for Hopper (sm_90a) of few rows: wgmma with its operands exchanged. The contract of gemm.cuh (GemmParams),
// for M ≤ 128: a decode step's.
//
// A block has 64 outputs of every row: 64 rows of w are the operand of 64 rows, the rows of x are the columns, so the
// weights are read once and no row of them is padding. One warp asks TMA for stage after stage, the first weights
// before the grid that makes x has ended; a warpgroup multiplies. K in ascending k16 steps into one accumulator, no
// split-K: the bits are those of gemm_wgmma.cuh, whatever M. Floor in bytes: 2·N·K of weights, M·K and M·N are small.
// 4096 × 4096 at M = 32: 33.6 MB, 11.1 µs at 3.03 TB/s. N = 4096 is 64 blocks: each has 96 KiB or more under way.
//
// The bar at M = 32 is 0.75 of the floor: on an H100 (2026-11-27) 0.80, 0.68, 0.86 and 0.76 of N × K = 4096 × 4096,
// 6144 × 4096, 28,672 × 4096 and 4096 × 14,336, 0.80 of the four together; at M = 1, where it is 0.85, 0.81, 0.72, 0.88
// and 0.80, 0.83 together. Those were launches alone, 2.5 to 10 µs above the floor. Behind another grid the first stages
// are read before it ends: of 4096 × 4096 6.3 of 33.6 MB; the others take 6.4 µs, and with those 2.5 the floor of 7.8 is
// 0.88 of it.
// A model of 8B reads 15.0 GB for one sequence: 286 tokens/s at 4.3 TB/s, of which the bar of 245 is 0.86. 32 of them
// behind 1,200 tokens, whose bar is 5,000/s, 6.4 ms: the weights take 4.7 at 0.75 of 4.3 TB/s, 5.0 GB of KV 1.3 at 3.9;
// 0.4 are left for the rest. 256: 3.8 TFLOP, 4.9 ms at 790 TFLOP/s, and 40 GB of KV, 10.3 at 3.9 TB/s: 16,800/s; the
// bar is 11,000.
#pragma once

#include "kernels/cuda/linear/gemm_wgmma.cuh"

namespace baton::cuda {

/// kRows rows of x at most. kShared: bytes of shared memory that stages fill.
template <int kRowsIn, int kShared>
struct NarrowTile {
  static_assert(kRowsIn == 16 || kRowsIn == 32 || kRowsIn == 64 || kRowsIn == 128);
  static constexpr int kRows = kRowsIn, kCols = 64, kStages = kShared / ((kRows + kCols) * kGemmStepK * 2);
};
constexpr int kNarrowShared = 100 << 10;  ///< two blocks to an SM
constexpr int kDeepShared = 200 << 10;    ///< one, where there are no more blocks than SMs
constexpr int kNarrowThreads = 128 + 32, kNarrowRows = 128;

template <typename Tile>
struct alignas(1024) NarrowShared {
  px::bf16 w[Tile::kStages][Tile::kCols * kGemmStepK];
  px::bf16 x[Tile::kStages][Tile::kRows * kGemmStepK];
  uint64_t full[Tile::kStages];   ///< TMA's bytes have come
  uint64_t empty[Tile::kStages];  ///< the four warps are done with the stage
};
static_assert(2 * (sizeof(NarrowShared<NarrowTile<16, kNarrowShared>>) + 1024) <= 227 * 1024);
static_assert(sizeof(NarrowShared<NarrowTile<128, kDeepShared>>) <= 227 * 1024);

#if PX_HAS_WGMMA

/// One thread, by TMA.
template <typename Tile, typename Out>
PX_DEVICE void FeedNarrowStages(NarrowShared<Tile>& smem, const WgmmaParams<Out>& p, int steps, int row0, int col0) {
  constexpr int kBytes = (Tile::kRows + Tile::kCols) * kGemmStepK * 2;
  const auto load_w = [&](int i, int s) {
    px::MbarrierArriveExpect(&smem.full[s], kBytes);
    px::TmaLoad2D(smem.w[s], &p.w, i * kGemmStepK, col0, &smem.full[s]);
  };
  const auto load_x = [&](int i, int s) { px::TmaLoad2D(smem.x[s], &p.x, i * kGemmStepK, row0, &smem.full[s]); };
  FeedWeightsFirst(smem.empty, steps, load_w, load_x);
}

#endif

template <typename Out>
PX_DEVICE void StoreNarrow(const GemmParams<Out>& p, int row, int col, float bias, float value) {
  if (row >= p.m || col >= p.n) return;
  Out* out = p.out + row * p.out_stride + col;
  if (p.bias != nullptr) value = px::Add(value, bias);
  if constexpr (sizeof(Out) == 4) {
    if (p.adds) value = px::Add(px::Load(out), value);
  }
  px::Store(out, px::FromFloat<Out>(value));
}

template <typename Tile, typename Out>
PX_KERNEL void PX_BOUNDS(kNarrowThreads) NarrowGemmKernel(const PX_GRID_CONST WgmmaParams<Out> p) {
#if PX_HAS_WGMMA
  using Shared = NarrowShared<Tile>;
  PX_SHARED(Shared, smem);
  const int t = px::ThreadX(), steps = (p.gemm.k + kGemmStepK - 1) / kGemmStepK;
  const int row0 = px::BlockY() * Tile::kRows, col0 = px::BlockX() * Tile::kCols;
  if (t == 0) InitStages(smem.full, smem.empty, 4);
  px::SyncThreads();
  if (t >= 128) {
    if (t == 128) FeedNarrowStages(smem, p, steps, row0, col0);
    px::GridDependencyRelease();
    return;
  }
  float d[Tile::kRows / 2];
  MultiplyStages<Tile::kRows>(smem.full, smem.empty, d, steps, [&](int s) {
    return WgmmaOperands{px::WgmmaDescriptor(smem.w[s]), px::WgmmaDescriptor(smem.x[s])};
  });
  px::GridDependencyRelease();
  px::GridDependencyWait();  // for what `adds` reads
  const int col = col0 + t / 32 * 16 + px::Lane() / 4, row = row0 + px::Lane() % 4 * 2;
  float bias[2] = {0, 0};
  PX_UNROLL
  for (int i = 0; i < 2; ++i)
    if (p.gemm.bias != nullptr && col + i * 8 < p.gemm.n) bias[i] = px::Load(p.gemm.bias + col + i * 8);
  PX_UNROLL
  for (int j = 0; j < Tile::kRows / 8; ++j) PX_UNROLL
  for (int i = 0; i < 4; ++i) StoreNarrow(p.gemm, row + j * 8 + i % 2, col + i / 2 * 8, bias[i / 2], d[4 * j + i]);
#else
  (void)p;
#endif
}

template <typename Tile, typename Out>
void LaunchNarrowGemmTile(gpu::Stream& stream, const GemmParams<Out>& p, bool programmatic) {
  auto stride = [](int64_t elements) { return static_cast<int>(elements); };
  const WgmmaParams<Out> params{gpu::MakeTensorMap2D(p.x, p.k, p.m, stride(p.x_stride), Tile::kRows),
                                gpu::MakeTensorMap2D(p.w, p.k, p.n, stride(p.w_stride), Tile::kCols), p};
  gpu::Launch(stream,
              {.grid = {static_cast<unsigned>((p.n + Tile::kCols - 1) / Tile::kCols),
                        static_cast<unsigned>((p.m + Tile::kRows - 1) / Tile::kRows)},
               .block = {kNarrowThreads},
               .shared_bytes = sizeof(NarrowShared<Tile>),
               .programmatic = programmatic},
              &NarrowGemmKernel<Tile, Out>, params);
}

/// Where this form is the faster one of wgmma's: weights are read once for each 128 rows.
inline bool NarrowSuits(int m, int n, int multiprocessors) {
  return m <= kNarrowRows || (m <= 2 * kNarrowRows && 2 * ((n + 63) / 64) <= multiprocessors);
}

/// On sm_90 only. The tile by the number of rows, more stages where blocks have an SM each; bits depend on neither.
template <typename Out>
void LaunchNarrowGemm(gpu::Stream& stream, const GemmParams<Out>& p, int multiprocessors, bool programmatic = false) {
  if (p.m == 0 || p.n == 0) return;
  const bool alone = (p.n + 63) / 64 * ((p.m + kNarrowRows - 1) / kNarrowRows) <= multiprocessors;
  if (p.m <= 16)
    LaunchNarrowGemmTile<NarrowTile<16, kNarrowShared>>(stream, p, programmatic);
  else if (p.m <= 32)
    LaunchNarrowGemmTile<NarrowTile<32, kNarrowShared>>(stream, p, programmatic);
  else if (p.m <= 64 && alone)
    LaunchNarrowGemmTile<NarrowTile<64, kDeepShared>>(stream, p, programmatic);
  else if (p.m <= 64)
    LaunchNarrowGemmTile<NarrowTile<64, kNarrowShared>>(stream, p, programmatic);
  else if (alone)
    LaunchNarrowGemmTile<NarrowTile<128, kDeepShared>>(stream, p, programmatic);
  else
    LaunchNarrowGemmTile<NarrowTile<128, kNarrowShared>>(stream, p, programmatic);
}

}  // namespace baton::cuda
