// GEMM of e4m3 with e4m3 for Hopper (sm_90a): TMA feeds a ring of stages, wgmma multiplies. The contract of
// gemm_e4m3.cuh (E4m3GemmParams), for any M, where a step of 128 inputs has one scale: groups of k or of multiples of
// 128.
//
// The weights are the operand of 64 rows, the rows of x are the columns, for every M: what a row's sums see does not
// depend on the tile (Promise A), and a few rows read the weights once, none of them padding. One warp asks TMA for
// stage after stage, the first weights before the grid that makes x has ended. A warpgroup multiplies a stage from
// zero, 128 products, which wgmma keeps in fewer bits than f32; then adds them to the outputs with one fma by both
// scales, whose loads were under way meanwhile. Two warpgroups of a block take turns at the tensor cores. Floor:
// gemm_e4m3.cuh's, at 1,500 TFLOP/s and 4.3 TB/s. 2,048 × 28,672 × 4,096: 321 µs.
//
// A model of 8B (218 M weights a layer, 32 layers) at the bar of 65,000 tokens/s prefills 2,048 tokens in 31.5 ms.
// Attention takes 2.4 of them (1.1 TFLOP at 450 TFLOP/s), norms, codes, angles, gates and sums 6.3 (840 MB a layer), so
// the 28.6 TFLOP of these layers have 22.8: 1,250 TFLOP/s. A 128 × 128 tile reads 32 KiB for 2.1 M products, which is
// 9.8 TB/s out of L2 at that rate. The most that we have measured there is 8.2 TB/s (the wide tile of gemm_wgmma.cuh,
// 703 TFLOP/s on an H100, 2026-11-27), and so much gives 1,050 TFLOP/s here: 57,000 tokens/s. It is the tile that falls
// short of the bar: two blocks of a cluster, each with the other's half of w by TMA's multicast, read 24 KiB (7.3
// TB/s); neither the emulator nor px has clusters yet. One sequence reads 7.0 GB of codes and a head of 1.05 GB: 1.87
// ms, 535 tokens/s; the bar of 420 is 0.79 of it. Not yet run on a GPU.
#pragma once

#include "kernels/cuda/linear/gemm_e4m3.cuh"
#include "kernels/cuda/wgmma_stages.cuh"
#include "kernels/runtime/tensor_map.h"

namespace baton::cuda {

/// kRows rows of x at most by 64 outputs for each warpgroup. kShared: bytes of shared memory that stages fill.
template <int kRowsIn, int kWarpgroupsIn, int kShared>
struct E4m3WgmmaTile {
  static_assert(kRowsIn == 16 || kRowsIn == 32 || kRowsIn == 64 || kRowsIn == 128);
  static constexpr int kRows = kRowsIn, kWarpgroups = kWarpgroupsIn, kCols = 64 * kWarpgroups;
  static constexpr int kStages = kShared / ((kRows + kCols) * kE4m3StepK);
  /// One thread feeds; where two warpgroups multiply, a third gives them its registers.
  static constexpr bool kGivesRegisters = kWarpgroups == 2;
  static constexpr int kThreads = kWarpgroups * 128 + (kGivesRegisters ? 128 : 32);
};
using E4m3WgmmaFew = E4m3WgmmaTile<16, 1, 100 << 10>;  ///< two blocks to an SM
using E4m3WgmmaSome = E4m3WgmmaTile<64, 1, 100 << 10>;
using E4m3WgmmaMany = E4m3WgmmaTile<128, 2, 192 << 10>;

template <typename Tile>
struct alignas(1024) E4m3WgmmaShared {
  px::e4m3 w[Tile::kStages][Tile::kCols * kE4m3StepK];
  px::e4m3 x[Tile::kStages][Tile::kRows * kE4m3StepK];
  uint64_t full[Tile::kStages];   ///< TMA's bytes have come
  uint64_t empty[Tile::kStages];  ///< every warp that multiplies is done with the stage
};
static_assert(2 * (sizeof(E4m3WgmmaShared<E4m3WgmmaFew>) + 1024) <= 227 * 1024);
static_assert(sizeof(E4m3WgmmaShared<E4m3WgmmaMany>) <= 227 * 1024 && kE4m3StepK == 2 * px::kTmaBoxColumns);

/// What a launch passes by value. To TMA two codes are one bf16.
template <typename Out>
struct E4m3WgmmaParams {
  px::TensorMap2D x, w;  ///< boxes of Tile::kRows and Tile::kCols rows
  E4m3GemmParams<Out> gemm;
};

/// Whether a step's inputs share their scales.
PX_BOTH bool E4m3WgmmaTakes(int k, int group) { return group == k || group % kE4m3StepK == 0; }

#if PX_HAS_WGMMA

/// One thread, by TMA.
template <typename Tile, typename Out>
PX_DEVICE void FeedE4m3Stages(E4m3WgmmaShared<Tile>& smem, const E4m3WgmmaParams<Out>& p, int steps, int row0,
                              int col0) {
  constexpr int kBytes = (Tile::kRows + Tile::kCols) * kE4m3StepK;
  const auto load_w = [&](int i, int s) {
    px::MbarrierArriveExpect(&smem.full[s], kBytes);
    px::TmaLoad2D(smem.w[s], &p.w, i * px::kTmaBoxColumns, col0, &smem.full[s]);
  };
  const auto load_x = [&](int i, int s) {
    px::TmaLoad2D(smem.x[s], &p.x, i * px::kTmaBoxColumns, row0, &smem.full[s]);
  };
  FeedWeightsFirst(smem.empty, steps, load_w, load_x);
}

/// Scales of one group for what a thread holds: outputs `col` and col + 8, and of each 8 rows of x its two.
template <int kRows>
struct E4m3ThreadScales {
  float w[2];
  float x[kRows / 8][2];
};
template <int kRows, typename Out>
PX_DEVICE void LoadE4m3Scales(E4m3ThreadScales<kRows>& scales, const E4m3GemmParams<Out>& p, int group, int row0,
                              int col) {
  const int lane = px::Lane();
  const int64_t at = (static_cast<int64_t>(col / 16) * QuantGroups(p.k, p.group) + group) * 8 + lane / 4;
  const px::U64 meta = col < p.n ? px::Load(reinterpret_cast<const px::U64*>(p.meta + at)) : px::U64{};
  PX_UNROLL
  for (int i = 0; i < 2; ++i) scales.w[i] = px::BitCast<float>(meta.w[i]);
  const float* const x = p.x_scales + group * p.x_scale_stride + row0 + lane % 4 * 2;
  PX_UNROLL
  for (int j = 0; j < kRows / 8; ++j) {
    const px::F2 pair = px::Load(reinterpret_cast<const px::F2*>(x + j * 8));
    scales.x[j][0] = pair.x;
    scales.x[j][1] = pair.y;
  }
}

/// One warpgroup: outputs `col` and col + 8 of the thread, of rows row0 + 8j + lane % 4 · 2 and the one behind it, to
/// d[4j …].
template <typename Tile, typename Out>
PX_DEVICE void MultiplyE4m3Stages(E4m3WgmmaShared<Tile>& smem, const E4m3GemmParams<Out>& p,
                                  float (&d)[Tile::kRows / 2], int steps, int row0, int col) {
  const int per_group = p.group == p.k ? steps : p.group / kE4m3StepK;  // steps
  const int first_output = px::ThreadX() / 128 * 64;
  E4m3ThreadScales<Tile::kRows> scales;
  float sums[Tile::kRows / 2];
  for (int i = 0; i < steps; ++i) {
    const int s = i % Tile::kStages;
    if (i % per_group == 0) LoadE4m3Scales(scales, p, i / per_group, row0, col);
    px::MbarrierWait(&smem.full[s], i / Tile::kStages & 1);
    const uint64_t a = px::WgmmaDescriptor(smem.w[s] + first_output * kE4m3StepK), b = px::WgmmaDescriptor(smem.x[s]);
    px::WgmmaFence();
    PX_UNROLL
    for (int q = 0; q < kE4m3Mmas; ++q) px::WgmmaE4m3K32<Tile::kRows>(sums, a + q * 2, b + q * 2, q != 0);
    px::WgmmaCommit();
    px::WgmmaWait<0>();
    px::WgmmaResult(sums);
    if (px::Lane() == 0) px::MbarrierArrive(&smem.empty[s]);
    PX_UNROLL
    for (int e = 0; e < Tile::kRows / 2; ++e)
      d[e] = px::Fma(sums[e], px::Mul(scales.x[e / 4][e % 2], scales.w[e / 2 % 2]), d[e]);
  }
}

#endif

template <typename Tile, typename Out>
PX_KERNEL void PX_BOUNDS(Tile::kThreads) E4m3WgmmaKernel(const PX_GRID_CONST E4m3WgmmaParams<Out> p) {
#if PX_HAS_WGMMA
  using Shared = E4m3WgmmaShared<Tile>;
  PX_SHARED(Shared, smem);
  constexpr int kFeeder = Tile::kWarpgroups * 128;
  const int t = px::ThreadX(), steps = static_cast<int>(RoundedPitch(p.gemm.k)) / kE4m3StepK;
  const int row0 = px::BlockX() * Tile::kRows, col0 = px::BlockY() * Tile::kCols;
  if (t == 0) InitStages(smem.full, smem.empty, Tile::kWarpgroups * 4);
  px::SyncThreads();
  if (t >= kFeeder) {
    if constexpr (Tile::kGivesRegisters) px::RegisterDecrease<40>();
    if (t == kFeeder) FeedE4m3Stages(smem, p, steps, row0, col0);
    px::GridDependencyRelease();
    return;
  }
  if constexpr (Tile::kGivesRegisters) px::RegisterIncrease<232>();
  px::GridDependencyWait();  // for the scales of x
  const int col = col0 + t / 32 * 16 + px::Lane() / 4;
  float d[Tile::kRows / 2] = {};
  MultiplyE4m3Stages(smem, p.gemm, d, steps, row0, col);
  px::GridDependencyRelease();
  PX_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int output = col + i * 8;
    if (output >= p.gemm.n) break;
    const float bias = p.gemm.bias != nullptr ? px::Load(p.gemm.bias + output) : 0.0f;
    PX_UNROLL
    for (int j = 0; j < Tile::kRows / 4; ++j) {
      const int row = row0 + j / 2 * 8 + px::Lane() % 4 * 2 + j % 2;
      if (row >= p.gemm.m) continue;
      float value = d[j / 2 * 4 + i * 2 + j % 2];
      if (p.gemm.bias != nullptr) value = px::Add(value, bias);
      px::Store(p.gemm.out + row * p.gemm.out_stride + output, px::FromFloat<Out>(value));
    }
  }
#else
  (void)p;
#endif
}

template <typename Tile, typename Out>
void LaunchE4m3WgmmaTile(gpu::Stream& stream, const E4m3GemmParams<Out>& p, bool programmatic = false) {
  const int columns = static_cast<int>(RoundedPitch(p.k)) / 2;
  const auto map = [&](const px::e4m3* codes, int rows, int box) {
    return gpu::MakeTensorMap2D(reinterpret_cast<const px::bf16*>(codes), columns, rows, columns, box);
  };
  const E4m3WgmmaParams<Out> params{map(p.x, p.m, Tile::kRows), map(p.w, p.n, Tile::kCols), p};
  gpu::Launch(stream,
              {.grid = {static_cast<unsigned>((p.m + Tile::kRows - 1) / Tile::kRows),
                        static_cast<unsigned>((p.n + Tile::kCols - 1) / Tile::kCols)},
               .block = {Tile::kThreads},
               .shared_bytes = sizeof(E4m3WgmmaShared<Tile>),
               .programmatic = programmatic},
              &E4m3WgmmaKernel<Tile, Out>, params);
}

/// On sm_90 only, and where E4m3WgmmaTakes the group. The largest tile when there are enough of them for every
/// multiprocessor; bits do not depend on it.
template <typename Out>
void LaunchE4m3Wgmma(gpu::Stream& stream, const E4m3GemmParams<Out>& p, int multiprocessors,
                     bool programmatic = false) {
  using Many = E4m3WgmmaMany;
  if (p.m == 0 || p.n == 0) return;
  const int many = (p.m + Many::kRows - 1) / Many::kRows * ((p.n + Many::kCols - 1) / Many::kCols);
  if (p.m <= E4m3WgmmaFew::kRows)
    LaunchE4m3WgmmaTile<E4m3WgmmaFew>(stream, p, programmatic);
  else if (p.m <= E4m3WgmmaSome::kRows || many < multiprocessors)
    LaunchE4m3WgmmaTile<E4m3WgmmaSome>(stream, p, programmatic);
  else
    LaunchE4m3WgmmaTile<Many>(stream, p, programmatic);
}

}  // namespace baton::cuda
