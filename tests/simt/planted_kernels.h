// Small kernels that are right as they stand, each with bugs that a template argument plants.
#pragma once

#include "kernels/px/px.h"

namespace baton::simt_test {

enum class Bug {
  kNone,
  kNoBarrierBeforeRead,     ///< block sum: partials read before the other warps wrote them
  kNoBarrierBeforeReuse,    ///< block sum: next row's partials overwrite those still being read
  kNoWarpSync,              ///< warp transpose through shared memory without __syncwarp
  kWarpSyncMaskTooSmall,    ///< … with a mask that leaves out half of the lanes
  kShuffleInDivergentCode,  ///< full-mask shuffle that only some lanes reach
  kBarrierInDivergentCode,  ///< __syncthreads that half of the warps skip while they wait elsewhere
  kNamedBarrierCount,       ///< bar.sync with more threads than come
  kUninitializedShared,     ///< accumulates into shared memory that nobody cleared
  kSharedOverrun,           ///< writes one element past the shared array
  kWeakCopyWait,            ///< pipeline: waits for one group too few
  kNoBarrierAfterCopy,      ///< pipeline: sees its own copies, not the other threads'
  kNoBarrierBeforeStage,    ///< pipeline: refills a stage that others still read
  kNoZeroFill,              ///< pipeline: tail rows are read from beyond the valid tokens
  kWrongStage,              ///< pipeline: reads the stage that is being filled
  kNoFullWait,              ///< GEMM: wgmma before the TMA bytes have come
  kNoEmptyWait,             ///< GEMM: TMA into a stage that wgmma still reads
  kWrongParity,             ///< GEMM: waits for the wrong phase
  kTooFewBytesExpected,     ///< GEMM: announces only half of the bytes
  kNoBarrierAfterInit,      ///< GEMM: waits on mbarriers that another warp still initializes
  kNoInitFence,             ///< GEMM: TMA is not told of the initialized mbarriers
  kNoWgmmaFence,            ///< GEMM: wgmma takes its accumulators without a fence
  kReleasedInFlight,        ///< GEMM: gives a stage back before the wgmma that reads it has ended
  kNoWgmmaWait,             ///< GEMM: reads accumulators in flight
  kTooManyBytes,            ///< GEMM: announces more than an mbarrier counts
  kInitTwice,               ///< GEMM: initializes an mbarrier that is one
  kTmaAtTheEnd,             ///< GEMM: a copy that nobody waits for
  kExitInFlight,            ///< GEMM: the last products are not waited for, nor read
  kOperandOffPattern,       ///< GEMM: an operand's tile begins within a pattern of the swizzle
  kTooManyRegisters,        ///< setmaxnreg: more than the others give
  kRegistersOfSomeWarps,    ///< setmaxnreg: by three warps of a warpgroup
  kDecreaseToMore,          ///< setmaxnreg.dec to more than there are
  kNoProxyFence,            ///< wgmma of operands that threads stored, without fence.proxy.async
  kEarlyProxyFence,         ///< … with the fence before the stores
  kFenceOfOneThread,        ///< … with one thread's fence for all
  kLdMatrixRow,             ///< ldmatrix with lanes 8…15 addressing the wrong rows
  kNoDependencyWait,        ///< PDL: reads the predecessor's output without waiting
  kEarlyReadOfTwoBefore,    ///< PDL: a third grid reads, before it waits, what the first writes
  kThirdDoesNotWait,        ///< PDL: … does not wait for the second
  kEarlyRelease,            ///< PDL: neither waits nor is safe: writes what the predecessor still reads
};

// ---------------------------------------------------------------- sums of rows, 4 warps
constexpr int kSumThreads = 128;
struct SumShared {
  float partial[kSumThreads / 32];
  float total[1];
};

/// out[r] = Σ in[r, 0…n).
template <Bug kBug>
PX_KERNEL void SumRows(const float* in, float* out, int rows, int n) {
  PX_SHARED(SumShared, smem);
  const int warp = px::WarpIndex(), lane = px::Lane();
  float* partial = reinterpret_cast<float*>(&smem);                     // [4 · spacing]
  const int spacing = kBug == Bug::kSharedOverrun && rows > 0 ? 2 : 1;  // not known to the compiler
  for (int r = 0; r < rows; ++r) {
    float sum = 0;
    for (int i = px::ThreadX(); i < n; i += kSumThreads) sum += px::Load(in + static_cast<size_t>(r) * n + i);
    for (int m = 16; m > 0; m /= 2) {
      if (kBug == Bug::kShuffleInDivergentCode && lane >= 16 && m < 16) break;
      sum += px::ShuffleXor(sum, m);
    }
    if (lane == 0) {
      if (kBug == Bug::kUninitializedShared)
        partial[warp] += sum;
      else
        partial[warp * spacing] = sum;
    }
    if (kBug == Bug::kBarrierInDivergentCode && warp >= 2)
      px::BarSync(1, kSumThreads);
    else if (kBug == Bug::kNamedBarrierCount)
      px::BarSync(2, kSumThreads + 32);
    else if (kBug != Bug::kNoBarrierBeforeRead)
      px::SyncThreads();
    if (px::ThreadX() == kSumThreads - 1) {
      float total = 0;
      for (int w = 0; w < kSumThreads / 32; ++w) total += partial[w * spacing];
      px::Store(out + r, total);
    }
    if (kBug != Bug::kNoBarrierBeforeReuse) px::SyncThreads();
  }
}

// ---------------------------------------------------------------- transpose of 32 × 32 by one warp
struct TransposeShared {
  float tile[32][33];
};
template <Bug kBug>
PX_KERNEL void Transpose(const float* in, float* out) {
  PX_SHARED(TransposeShared, smem);
  const int lane = px::Lane();
  for (int r = 0; r < 32; ++r) smem.tile[r][lane] = px::Load(in + r * 32 + lane);
  if (kBug == Bug::kWarpSyncMaskTooSmall)
    px::SyncWarp(lane < 16 ? 0x0000FFFFu : 0xFFFF0000u);
  else if (kBug != Bug::kNoWarpSync)
    px::SyncWarp();
  for (int r = 0; r < 32; ++r) px::Store(out + r * 32 + lane, smem.tile[lane][r]);
}

// ---------------------------------------------------------------- cp.async pipeline
constexpr int kPipeThreads = 64, kPipeRows = 8, kPipeCols = 32;
struct PipeShared {
  float stage[2][kPipeRows][kPipeCols];
};

/// out[c] = Σ over rows < valid_rows of in[row, c]; rows beyond hold garbage.
template <Bug kBug>
PX_KERNEL void PipelinedColumnSum(const float* in, float* out, int valid_rows, int tiles) {
  PX_SHARED(PipeShared, smem);
  const int t = px::ThreadX();
  auto fetch = [&](int tile) {
    // Thread t copies one 16-byte chunk: row t / 8, columns 4 · (t % 8) ….
    const int row = tile * kPipeRows + t / 8;
    const bool valid = row < valid_rows || kBug == Bug::kNoZeroFill;
    const float* source = in + (valid ? static_cast<size_t>(row) * kPipeCols + t % 8 * 4 : 0);
    px::CpAsync16(&smem.stage[tile & 1][t / 8][t % 8 * 4], source, valid);
  };
  float sum = 0;
  fetch(0);
  px::CpAsyncCommit();
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) fetch(tile + 1);
    px::CpAsyncCommit();
    px::CpAsyncWait<kBug == Bug::kWeakCopyWait ? 2 : 1>();
    if (kBug != Bug::kNoBarrierAfterCopy) px::SyncThreads();
    const int stage = kBug == Bug::kWrongStage ? (tile + 1) & 1 : tile & 1;
    if (t < kPipeCols)
      for (int r = 0; r < kPipeRows; ++r) sum += px::LoadShared(&smem.stage[stage][r][t]);
    if (kBug != Bug::kNoBarrierBeforeStage) px::SyncThreads();
  }
  px::CpAsyncWait<0>();
  if (t < kPipeCols) px::Store(out + t, sum);
}

// ---------------------------------------------------------------- TMA + wgmma GEMM
constexpr int kGemmStages = 3, kGemmThreads = 256, kGemmM = 64, kGemmN = 64, kGemmK = 64;
struct GemmShared {
  px::bf16 a[kGemmStages][kGemmM * kGemmK];
  px::bf16 b[kGemmStages][kGemmN * kGemmK];
  uint64_t full[kGemmStages];
  uint64_t empty[kGemmStages];
};

/// c[64, 64] = a[64, K] · b[64, K]ᵀ in f32. Warpgroup 0 computes, thread 128 feeds.
template <Bug kBug>
PX_KERNEL void TmaGemm(const PX_GRID_CONST px::TensorMap2D a, const PX_GRID_CONST px::TensorMap2D b, float* c, int k) {
  PX_SHARED(GemmShared, smem);
  const int t = px::ThreadX(), tiles = k / kGemmK;
  if (t == 0) {
    for (int s = 0; s < kGemmStages; ++s) {
      px::MbarrierInit(&smem.full[s], 1);
      px::MbarrierInit(&smem.empty[kBug == Bug::kInitTwice ? 0 : s], 1);
    }
    if (kBug != Bug::kNoInitFence) px::MbarrierFenceInit();
  }
  if (kBug != Bug::kNoBarrierAfterInit) px::SyncThreads();
  if (t >= 128) {
    px::RegisterDecrease<40>();
    if (t != 128) return;
    constexpr int kBytes = (kGemmM + kGemmN) * kGemmK * 2;
    for (int i = 0; i < tiles; ++i) {
      const int s = i % kGemmStages;
      if (i >= kGemmStages && kBug != Bug::kNoEmptyWait) px::MbarrierWait(&smem.empty[s], (i / kGemmStages - 1) & 1);
      px::MbarrierArriveExpect(&smem.full[s], kBug == Bug::kTooFewBytesExpected ? kBytes / 2
                                              : kBug == Bug::kTooManyBytes      ? kBytes << 7
                                                                                : kBytes);
      px::TmaLoad2D(smem.a[s], &a, i * kGemmK, 0, &smem.full[s]);
      px::TmaLoad2D(smem.b[s], &b, i * kGemmK, 0, &smem.full[s]);
    }
    if (kBug == Bug::kTmaAtTheEnd) px::TmaLoad2D(smem.a[0], &a, 0, 0, &smem.full[0]);
    return;
  }
  px::RegisterIncrease<256>();
  float d[32], unread[32];
  for (int i = 0; i < tiles; ++i) {
    const int s = i % kGemmStages;
    if (kBug != Bug::kNoFullWait) px::MbarrierWait(&smem.full[s], (i / kGemmStages + (kBug == Bug::kWrongParity)) & 1);
    if (kBug == Bug::kReleasedInFlight && t == 0) px::MbarrierArrive(&smem.empty[s]);
    if (kBug != Bug::kNoWgmmaFence) px::WgmmaFence();
    PX_UNROLL
    for (int kk = 0; kk < kGemmK / 16; ++kk)
      px::WgmmaM64N64K16(d, px::WgmmaDescriptor(smem.a[s] + (kBug == Bug::kOperandOffPattern ? 256 : 0)) + kk * 2,
                         px::WgmmaDescriptor(smem.b[s]) + kk * 2, (i | kk) != 0);
    px::WgmmaCommit();
    if (kBug != Bug::kNoWgmmaWait || i + 1 < tiles) px::WgmmaWait<0>();
    if (kBug != Bug::kReleasedInFlight && t == 0) px::MbarrierArrive(&smem.empty[s]);
  }
  if (kBug == Bug::kExitInFlight) {
    px::WgmmaFence();
    px::WgmmaM64N64K16(unread, px::WgmmaDescriptor(smem.a[0]), px::WgmmaDescriptor(smem.b[0]), false);
    px::WgmmaCommit();
  }
  const int warp = t / 32, lane = t % 32;
  PX_UNROLL
  for (int i = 0; i < 32; ++i) {
    const int row = warp * 16 + lane / 4 + 8 * (i / 2 % 2), col = i / 4 * 8 + lane % 4 * 2 + i % 2;
    px::Store(c + row * kGemmN + col, d[i]);
  }
}

// ---------------------------------------------------------------- registers moved between warpgroups
constexpr int kMovedThreads = 384;  ///< 168 registers each
template <Bug kBug>
PX_KERNEL void MoveRegisters(int* out) {
  const int t = px::ThreadX();
  if (t >= 256) {
    px::RegisterDecrease<(kBug == Bug::kDecreaseToMore ? 176 : 40)>();
    return;
  }
  if (kBug != Bug::kRegistersOfSomeWarps || t >= 32)
    px::RegisterIncrease<(kBug == Bug::kTooManyRegisters ? 240 : 232)>();
  px::Store(out + t, t);
}

// ---------------------------------------------------------------- wgmma of operands that threads store
struct StoredShared {
  px::bf16 a[kGemmM * kGemmK];
  px::bf16 b[kGemmN * kGemmK];
  uint64_t unused;
};
/// c[64, 64] = a[64, 64] · b[64, 64]ᵀ in f32. With an mbarrier, as every kernel that TMA feeds.
template <Bug kBug>
PX_KERNEL void StoredGemm(const px::bf16* a, const px::bf16* b, float* c) {
  PX_SHARED(StoredShared, smem);
  const int t = px::ThreadX();
  if (t == 0) px::MbarrierInit(&smem.unused, 1);
  px::SyncThreads();
  if (kBug == Bug::kEarlyProxyFence) px::FenceAsyncProxy();
  for (int i = t; i < kGemmM * kGemmK; i += 128) {
    const int row = i / kGemmK, chunk = i % kGemmK / 8 ^ row % 8;  // the swizzle of 128 bytes
    px::StoreShared(smem.a + row * kGemmK + chunk * 8 + i % 8, px::Load(a + i));
    px::StoreShared(smem.b + row * kGemmK + chunk * 8 + i % 8, px::Load(b + i));
  }
  if (kBug != Bug::kNoProxyFence && kBug != Bug::kEarlyProxyFence && (kBug != Bug::kFenceOfOneThread || t == 0))
    px::FenceAsyncProxy();
  px::SyncThreads();
  float d[32];
  px::WgmmaFence();
  PX_UNROLL
  for (int kk = 0; kk < kGemmK / 16; ++kk)
    px::WgmmaM64N64K16(d, px::WgmmaDescriptor(smem.a) + kk * 2, px::WgmmaDescriptor(smem.b) + kk * 2, kk != 0);
  px::WgmmaCommit();
  px::WgmmaWait<0>();
  const int warp = t / 32, lane = t % 32;
  PX_UNROLL
  for (int i = 0; i < 32; ++i) {
    const int row = warp * 16 + lane / 4 + 8 * (i / 2 % 2), col = i / 4 * 8 + lane % 4 * 2 + i % 2;
    px::Store(c + row * kGemmN + col, d[i]);
  }
}

// ---------------------------------------------------------------- mma.sync: 16 × 8 × 16
struct MmaShared {
  px::bf16 a[16][16];
};
/// d[16, 8] = a[16, 16] · b[8, 16]ᵀ.
template <Bug kBug>
PX_KERNEL void WarpProduct(const px::bf16* a, const px::bf16* b, float* d) {
  PX_SHARED(MmaShared, smem);
  const int lane = px::Lane();
  for (int i = lane; i < 256; i += 32) smem.a[i / 16][i % 16] = a[i];
  px::SyncWarp();
  uint32_t fragment[4];
  const int row = kBug == Bug::kLdMatrixRow && lane >= 8 && lane < 16 ? lane - 8 : lane & 15;
  px::LdMatrixX4(fragment, &smem.a[row][lane / 16 * 8]);
  const int n = lane / 4, k = lane % 4 * 2;
  auto pair = [&](int column) {
    return static_cast<uint32_t>(b[n * 16 + column].bits) | static_cast<uint32_t>(b[n * 16 + column + 1].bits) << 16;
  };
  float sum[4] = {};
  px::MmaBf16(sum, fragment, pair(k), pair(k + 8));
  for (int i = 0; i < 4; ++i) px::Store(d + (lane / 4 + 8 * (i / 2)) * 8 + lane % 4 * 2 + i % 2, sum[i]);
}

// ---------------------------------------------------------------- programmatic dependent launch
/// y = x + 1, then lets the dependent start before its own last store.
template <Bug kBug>
PX_KERNEL void Producer(const float* x, float* y, int n) {
  const int i = px::BlockX() * px::BlockDimX() + px::ThreadX();
  px::GridDependencyRelease();
  if (i < n) px::Store(y + i, px::Load(x + i) + 1.0f);
}
/// z = 2 · y; then x ← 0 (with the right order, after the producer has read x).
template <Bug kBug>
PX_KERNEL void Consumer(float* x, const float* y, float* z, int n) {
  const int i = px::BlockX() * px::BlockDimX() + px::ThreadX();
  if (kBug == Bug::kEarlyRelease && i < n) px::Store(x + n - 1 - i, 0.0f);
  if (kBug != Bug::kNoDependencyWait) px::GridDependencyWait();
  if (i >= n) return;
  px::Store(z + i, 2.0f * px::Load(y + i));
  if (kBug != Bug::kEarlyRelease) px::Store(x + n - 1 - i, 0.0f);
}
/// y = x + 1: lets the dependent start before it has waited itself.
PX_KERNEL_INLINE void Between(const float* x, float* y, int n) {
  const int i = px::BlockX() * px::BlockDimX() + px::ThreadX();
  px::GridDependencyRelease();
  px::GridDependencyWait();
  if (i < n) px::Store(y + i, px::Load(x + i) + 1.0f);
}
/// z = first + second, of the two grids before it.
template <Bug kBug>
PX_KERNEL void Third(const float* first, const float* second, float* z, int n) {
  const int i = px::BlockX() * px::BlockDimX() + px::ThreadX();
  float sum = 0;
  if (kBug == Bug::kEarlyReadOfTwoBefore && i < n) sum = px::Load(first + i);
  if (kBug != Bug::kThirdDoesNotWait) px::GridDependencyWait();
  if (i >= n) return;
  if (kBug != Bug::kEarlyReadOfTwoBefore) sum = px::Load(first + i);
  px::Store(z + i, sum + px::Load(second + i));
}

}  // namespace baton::simt_test
