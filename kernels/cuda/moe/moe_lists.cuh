// The lists by which a grouped GEMM reads its rows: tokens by expert, in the order of (token, choice).
//
// Floor: reads 4 bytes per pair twice, writes 8; 0 FLOP. One block makes them: 131k pairs (16k tokens, k = 8) are 2.1
// MB through one SM; a decode step's are launch-bound.
#pragma once

#include "kernels/cuda/moe/moe_limits.h"
#include "kernels/cuda/warp.cuh"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

struct MoeListParams {
  const int32_t* chosen;  ///< [pairs] = [tokens, k]
  int32_t* offsets;       ///< [experts + 1]: expert e owns rows [offsets[e], offsets[e + 1]) of the grouped GEMM
  int32_t* row_of_pair;   ///< [pairs] where pair (token, choice) lies
  int32_t* token_of_row;  ///< [pairs] which token a row reads
  int pairs, experts, k;
};

constexpr int kMoeListThreads = 1024, kMoeListWarps = kMoeListThreads / 32;

struct MoeListShared {
  int32_t count[kMoeListWarps][kMaxExperts];  ///< then: where the warp's next row of the expert goes
  int32_t total[kMaxExperts];
};

/// Where every warp's first row of expert e = ThreadX() goes: after the rows of lower experts and of lower warps.
/// Called by the first kMaxExperts threads; whole warps, for their shuffles.
PX_DEVICE void PlaceExperts(MoeListShared& smem, const MoeListParams& p) {
  const int e = px::ThreadX(), lane = px::Lane(), first = e - lane;
  const int mine = e < p.experts ? px::LoadShared(&smem.total[e]) : 0;
  int at = 0;
  for (int lower = lane; lower < first; lower += 32) at += lower < p.experts ? px::LoadShared(&smem.total[lower]) : 0;
  PX_UNROLL
  for (int m = 16; m > 0; m /= 2) at += px::ShuffleXor(at, m);
  int up_to = mine;
  PX_UNROLL
  for (int m = 1; m < 32; m *= 2) {
    const int other = px::Shuffle(up_to, lane >= m ? lane - m : lane);
    up_to += lane >= m ? other : 0;
  }
  at += up_to - mine;
  if (e >= p.experts) return;
  px::Store(p.offsets + e, at);
  if (e == p.experts - 1) px::Store(p.offsets + p.experts, at + mine);
  for (int w = 0; w < kMoeListWarps; ++w) {
    const int count = px::LoadShared(&smem.count[w][e]);
    px::StoreShared(&smem.count[w][e], at);
    at += count;
  }
}

/// Lanes of this warp with the same value (0 … 2^kBits − 1).
template <int kBits>
PX_DEVICE uint32_t LanesWith(int value) {
  uint32_t same = px::kFullMask;
  PX_UNROLL
  for (int b = 0; b < kBits; ++b) {
    const bool bit = value >> b & 1;
    const uint32_t ones = px::Ballot(bit);
    same &= bit ? ones : ~ones;
  }
  return same;
}

/// Every warp owns a run of consecutive pairs: counts them, learns where its rows begin, places them in order.
PX_KERNEL_INLINE void PX_BOUNDS(kMoeListThreads) MoeListKernel(const PX_GRID_CONST MoeListParams p) {
  PX_SHARED(MoeListShared, smem);
  const int t = px::ThreadX(), lane = px::Lane(), warp = px::WarpIndex();
  const int run = (p.pairs + kMoeListThreads - 1) / kMoeListThreads * 32;
  const int first = warp * run, last = first + run < p.pairs ? first + run : p.pairs;
  px::GridDependencyWait();
  for (int e = lane; e < p.experts; e += 32) px::StoreShared(&smem.count[warp][e], 0);
  px::SyncWarp();
  for (int i = first + lane; i < last; i += 32) px::AtomicAdd(&smem.count[warp][px::Load(p.chosen + i)], 1);
  px::SyncThreads();
  if (t < p.experts) {
    int total = 0;
    for (int w = 0; w < kMoeListWarps; ++w) total += px::LoadShared(&smem.count[w][t]);
    px::StoreShared(&smem.total[t], total);
  }
  px::SyncThreads();
  if (t < kMaxExperts) PlaceExperts(smem, p);
  px::SyncThreads();
  for (int group = first; group < last; group += 32) {
    const int i = group + lane;
    const int expert = i < last ? px::Load(p.chosen + i) : kMaxExperts;
    // The lowest lane of an expert takes rows for all of them. Every lane waits for its answer, so the next group's
    // addition comes after this one's: no barrier is needed.
    const uint32_t peers = LanesWith<9>(expert);
    const int leader = px::PopCount((peers & (0u - peers)) - 1), before = px::PopCount(peers & ((1u << lane) - 1));
    int row = 0;
    if (lane == leader && i < last) row = px::AtomicAdd(&smem.count[warp][expert], px::PopCount(peers));
    row = px::Shuffle(row, leader) + before;
    if (i < last) {
      px::Store(p.row_of_pair + i, row);
      px::Store(p.token_of_row + row, i / p.k);
    }
  }
  px::GridDependencyRelease();
}
/// With no pairs the offsets are zeroed all the same.
inline void LaunchMoeLists(gpu::Stream& stream, const MoeListParams& p, bool programmatic = false) {
  gpu::Launch(
      stream,
      {.grid = {1}, .block = {kMoeListThreads}, .shared_bytes = sizeof(MoeListShared), .programmatic = programmatic},
      &MoeListKernel, p);
}

}  // namespace baton::cuda
