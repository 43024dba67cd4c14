// Dense GEMM for Hopper (sm_90a): TMA feeds a ring of stages through mbarriers, two warpgroups multiply them with
// wgmma. The contract of gemm.cuh (GemmParams), for prefill-sized M.
//
// One warp asks TMA for stage after stage and waits for `empty`; warpgroup g holds rows 64g … 64g + 63 of the block's
// 128 × kCols outputs in registers, waits for `full` and keeps one wgmma group in flight. TMA's zeroes beyond the
// tensors are the padding. K in ascending k16 steps into one accumulator, no split-K: a row's bits do not depend on M,
// and are those of gemm.cuh, under the emulator and on an H100 (2026-11-27: random shapes, sums of up to 14,336
// products). CudaOps asks the device at the start (host/wgmma_bits.h); one that adds in another order takes this form
// only when it was not asked to be deterministic. Floor: max(2·(M·K + N·K) + out bytes at 4.3 TB/s, 2·M·N·K FLOP at 790
// TFLOP/s). 4096 × 28,672 × 4096: 1.22 ms. Per step of 64 a 128 × 256 tile reads 48 KiB for 2.1 M products: 48 bytes a
// clock of the SM at wgmma's full rate, which L2 gives because neighbouring blocks share w's tile. A model of 8B
// prefills 2,048 tokens at the bar of 40,000/s in 51 ms: 28.6 TFLOP here, 44 at 650 TFLOP/s; 2.4 of attention, 3.6 of
// rows.
#pragma once

#include "kernels/cuda/linear/gemm.cuh"
#include "kernels/cuda/wgmma_stages.cuh"
#include "kernels/runtime/tensor_map.h"

namespace baton::cuda {

template <int kColsIn>
struct WgmmaTile {
  static_assert(kColsIn == 128 || kColsIn == 256);
  static constexpr int kRows = 128, kCols = kColsIn, kStages = kColsIn == 256 ? 4 : 6;
};
constexpr int kWgmmaConsumers = 2, kWgmmaThreads = (kWgmmaConsumers + 1) * 128;

template <typename Tile>
struct alignas(1024) WgmmaShared {
  px::bf16 x[Tile::kStages][Tile::kRows * kGemmStepK];
  px::bf16 w[Tile::kStages][Tile::kCols * kGemmStepK];
  uint64_t full[Tile::kStages];   ///< TMA's bytes have come
  uint64_t empty[Tile::kStages];  ///< every consumer warp is done with the stage
};
static_assert(sizeof(WgmmaShared<WgmmaTile<256>>) <= 227 * 1024 && kGemmStepK == px::kTmaBoxColumns);

/// What a launch passes by value.
template <typename Out>
struct WgmmaParams {
  px::TensorMap2D x, w;  ///< boxes of Tile::kRows and Tile::kCols rows
  GemmParams<Out> gemm;
};

#if PX_HAS_WGMMA

/// Descriptors of a stage: of 64 rows, and of the columns.
struct WgmmaOperands {
  uint64_t a, b;
};
/// d[64 × kColumns] (+)= a · bᵀ over 16 columns of K.
template <int kColumns>
PX_DEVICE void Wgmma(float (&d)[kColumns / 2], uint64_t a, uint64_t b, bool accumulate) {
  if constexpr (kColumns == 256)
    px::WgmmaM64N256K16(d, a, b, accumulate);
  else if constexpr (kColumns == 128)
    px::WgmmaM64N128K16(d, a, b, accumulate);
  else if constexpr (kColumns == 64)
    px::WgmmaM64N64K16(d, a, b, accumulate);
  else if constexpr (kColumns == 32)
    px::WgmmaM64N32K16(d, a, b, accumulate);
  else
    px::WgmmaM64N16K16(d, a, b, accumulate);
}

/// One thread: stage after stage, as they become empty.
template <typename Tile, typename Out>
PX_DEVICE void FeedStages(WgmmaShared<Tile>& smem, const WgmmaParams<Out>& p, int steps, int row0, int col0) {
  constexpr int kBytes = (Tile::kRows + Tile::kCols) * kGemmStepK * 2;
  for (int i = 0; i < steps; ++i) {
    const int s = i % Tile::kStages;
    if (i >= Tile::kStages) px::MbarrierWait(&smem.empty[s], (i / Tile::kStages - 1) & 1);
    px::MbarrierArriveExpect(&smem.full[s], kBytes);
    px::TmaLoad2D(smem.x[s], &p.x, i * kGemmStepK, row0, &smem.full[s]);
    px::TmaLoad2D(smem.w[s], &p.w, i * kGemmStepK, col0, &smem.full[s]);
  }
}

/// One warpgroup: stage after stage as they come, one group of wgmma in flight. operands(s): the descriptors of stage
/// s's 64 rows and of its kColumns columns.
template <int kColumns, int kStages, typename Operands>
PX_DEVICE void MultiplyStages(uint64_t (&full)[kStages], uint64_t (&empty)[kStages], float (&d)[kColumns / 2],
                              int steps, Operands&& operands) {
  for (int i = 0; i < steps; ++i) {
    const int s = i % kStages;
    px::MbarrierWait(&full[s], i / kStages & 1);
    px::WgmmaFence();
    const auto [a, b] = operands(s);
    PX_UNROLL
    for (int kk = 0; kk < kGemmStepK / 16; ++kk) Wgmma<kColumns>(d, a + kk * 2, b + kk * 2, (i | kk) != 0);
    px::WgmmaCommit();
    px::WgmmaWait<1>();  // step i - 1 is done
    if (i > 0 && px::Lane() == 0) px::MbarrierArrive(&empty[(i - 1) % kStages]);
  }
  px::WgmmaWait<0>();
  px::WgmmaResult(d);
}

#endif

template <typename Tile, typename Out>
PX_KERNEL void PX_BOUNDS(kWgmmaThreads) WgmmaGemmKernel(const PX_GRID_CONST WgmmaParams<Out> p) {
#if PX_HAS_WGMMA
  using Shared = WgmmaShared<Tile>;
  PX_SHARED(Shared, smem);
  const int t = px::ThreadX(), group = t / 128, steps = (p.gemm.k + kGemmStepK - 1) / kGemmStepK;
  const int row0 = px::BlockX() * Tile::kRows, col0 = px::BlockY() * Tile::kCols;
  if (t == 0) InitStages(smem.full, smem.empty, kWgmmaConsumers * 4);
  px::SyncThreads();
  if (group == kWgmmaConsumers) {
    px::RegisterDecrease<40>();
    if (t == kWgmmaConsumers * 128) {
      px::GridDependencyWait();
      FeedStages(smem, p, steps, row0, col0);
    }
    px::GridDependencyRelease();
    return;
  }
  px::RegisterIncrease<232>();
  float d[Tile::kCols / 2];
  MultiplyStages<Tile::kCols>(smem.full, smem.empty, d, steps, [&](int s) {
    return WgmmaOperands{px::WgmmaDescriptor(smem.x[s] + group * 64 * kGemmStepK), px::WgmmaDescriptor(smem.w[s])};
  });
  px::GridDependencyRelease();
  px::GridDependencyWait();  // for what `adds` reads
  const int row = row0 + t / 32 * 16 + px::Lane() / 4, col = col0 + px::Lane() % 4 * 2;
  PX_UNROLL
  for (int j = 0; j < Tile::kCols / 8; ++j) {
    StoreGemmPair(p.gemm, row, col + j * 8, d[4 * j], d[4 * j + 1]);
    StoreGemmPair(p.gemm, row + 8, col + j * 8, d[4 * j + 2], d[4 * j + 3]);
  }
#else
  (void)p;
#endif
}

template <typename Tile, typename Out>
void LaunchWgmmaGemmTile(gpu::Stream& stream, const GemmParams<Out>& p, bool programmatic) {
  auto stride = [](int64_t elements) { return static_cast<int>(elements); };
  const WgmmaParams<Out> params{gpu::MakeTensorMap2D(p.x, p.k, p.m, stride(p.x_stride), Tile::kRows),
                                gpu::MakeTensorMap2D(p.w, p.k, p.n, stride(p.w_stride), Tile::kCols), p};
  const unsigned rows = static_cast<unsigned>((p.m + Tile::kRows - 1) / Tile::kRows);
  const unsigned cols = static_cast<unsigned>((p.n + Tile::kCols - 1) / Tile::kCols);
  gpu::Launch(stream,
              {.grid = {rows, cols},
               .block = {kWgmmaThreads},
               .shared_bytes = sizeof(WgmmaShared<Tile>),
               .programmatic = programmatic},
              &WgmmaGemmKernel<Tile, Out>, params);
}

/// On sm_90 only. The wide tile when there are enough of them for every multiprocessor; bits do not depend on it.
template <typename Out>
void LaunchWgmmaGemm(gpu::Stream& stream, const GemmParams<Out>& p, int multiprocessors, bool programmatic = false) {
  if (p.m == 0 || p.n == 0) return;
  const int wide_tiles = (p.m + 127) / 128 * ((p.n + 255) / 256);
  if (wide_tiles >= multiprocessors)
    LaunchWgmmaGemmTile<WgmmaTile<256>>(stream, p, programmatic);
  else
    LaunchWgmmaGemmTile<WgmmaTile<128>>(stream, p, programmatic);
}

}  // namespace baton::cuda
