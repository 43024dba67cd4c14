// Prefill attention for Hopper (sm_90a): TMA feeds a ring of stages with the sub-tiles of the paged KV cache, two
// warpgroups multiply them with wgmma. The contract of attention_prefill.cuh (PrefillParams), for bf16 caches, head_dim
// 64 and 128, at least two q heads to a kv head, no soft-cap: WgmmaPrefillSuits.
//
// A block has 64 rows of two q heads of one kv head, a warpgroup each. While a warpgroup computes the weights of a
// sub-tile, its products of the one before are under way, and what the other warpgroup has begun. Sub-tiles that some
// row may not see as a whole (the diagonal, the edge of a window) are taken with mma.sync, as attention_prefill.cuh
// takes all: they alone are masked and asked for infinities. Same order of additions, so the bits of
// attention_prefill.cuh where wgmma adds as mma.sync does: host/wgmma_bits.h asks the device. Floor: that of
// attention_prefill.cuh, 790 TFLOP/s; a row's 64 logits take 64 ex2, 16 of them a clock of the SM, so that softmax is
// half of the products' time. The bar is 450 TFLOP/s at 8k. A head's sub-tile is 2.1 MFLOP, 615 clocks of the SM at 790
// TFLOP/s, 1,080 at 450; its softmax is 32 logits a lane, about eight instructions and 8 clocks of ex2 each: 510 clocks
// of a warp. One behind the other that is 1,125 clocks, 431 TFLOP/s (an earlier version made 421 on an H200); each head
// within the other's products 615. Sub-tiles by mma.sync are one of 64 at 8k, at a third of the rate: 3 %.
#pragma once

#include "kernels/cuda/attention/attention_prefill.cuh"
#include "kernels/cuda/wgmma_stages.cuh"
#include "kernels/runtime/tensor_map.h"

namespace baton::cuda {

constexpr int kWgmmaPrefillGroups = 2, kWgmmaPrefillThreads = (kWgmmaPrefillGroups + 1) * kPrefillThreads;

template <int kDim>
using KvPanels = PanelLayout<kDim, kSubTileTokens>;

template <int kDim, bool kFixedTiles>
struct alignas(1024) WgmmaPrefillShared {
  static constexpr int kStages = kDim == 64 ? 6 : 4;
  struct Stage {
    px::bf16 k[kSubTileTokens * kDim], v[kSubTileTokens * kDim];
  };
  px::bf16 q[kWgmmaPrefillGroups][kPrefillRows * kDim];
  Stage stage[kStages];
  /// Running result of each group, each thread its own column, as in PrefillShared.
  px::U128 running[kWgmmaPrefillGroups][kFixedTiles ? kDim / 8 : 1][kPrefillThreads];
  uint64_t full[kStages];   ///< TMA's bytes have come
  uint64_t empty[kStages];  ///< every warp is done with the stage
};
static_assert(sizeof(WgmmaPrefillShared<128, true>) <= 227 * 1024);
static_assert(kSubTileTokens == kPrefillRows, "queries and keys lie alike");

/// What a launch passes by value.
struct WgmmaPrefillParams {
  px::TensorMap2D k, v;  ///< of the cache as rows of all heads of a token, in boxes of run_tokens rows
  int rows_per_block;    ///< from a block of the cache to the next
  int run_tokens;        ///< that lie one behind the other: 16, 32 or 64
  PrefillParams<px::bf16> prefill;
};

/// Two q heads of a kv head; of an odd number the last block has one.
struct HeadPair {
  int kv_head, q_head, heads;
};
PX_DEVICE HeadPair HeadPairOf(const PrefillParams<px::bf16>& p) {
  const int group = p.q_heads / p.kv.kv_heads, pairs = (group + 1) / 2, kv_head = px::BlockY() / pairs;
  const int first = px::BlockY() % pairs * kWgmmaPrefillGroups, left = group - first;
  return {kv_head, kv_head * group + first, left < kWgmmaPrefillGroups ? left : kWgmmaPrefillGroups};
}

/// Which of a tile's sub-tiles every row sees as a whole: [first, last).
PX_DEVICE SubTiles SeenByAll(const SubTiles& walk, const PrefillTile& tile, const PrefillPlace& at, int window) {
  const int first_position = at.context + tile.first_row;
  const int behind = first_position + kPrefillRows < at.length ? first_position + kPrefillRows : at.length;
  int first = walk.first, last = (first_position + 1) / kSubTileTokens;
  if (window > 0 && behind > window) {
    const int seen = (behind - window + kSubTileTokens - 1) / kSubTileTokens;
    first = seen > first ? seen : first;
  }
  if (first > walk.last) first = walk.last;
  if (last > walk.last) last = walk.last;
  return {first, last > first ? last : first};
}

#if PX_HAS_WGMMA

/// One thread: sub-tile after sub-tile, as stages become empty. Beyond the sequence's end stands its last run again:
/// no row sees it.
template <int kDim, bool kFixedTiles>
PX_DEVICE void FeedKv(WgmmaPrefillShared<kDim, kFixedTiles>& smem, const WgmmaPrefillParams& p, int q_head) {
  using Panels = KvPanels<kDim>;
  constexpr int kStages = WgmmaPrefillShared<kDim, kFixedTiles>::kStages;
  const PrefillTile tile = p.prefill.tiles[px::BlockX()];
  const PrefillPlace at = PlaceOf(p.prefill, tile.sequence, q_head);
  const SubTiles walk = SubTilesOf(tile, at, p.prefill.options.window);
  const BlockSize& block_size = p.prefill.kv.block_size;
  const int last_run = (at.length - 1) / p.run_tokens * p.run_tokens;
  for (int i = 0; i < walk.last - walk.first; ++i) {
    const int s = i % kStages, first = (walk.first + i) * kSubTileTokens;
    if (i >= kStages) px::MbarrierWait(&smem.empty[s], (i / kStages - 1) & 1);
    px::MbarrierArriveExpect(&smem.full[s], static_cast<int>(sizeof(smem.stage[s])));
    PX_UNROLL_BY(1)
    for (int done = 0; done < kSubTileTokens; done += p.run_tokens) {
      const int token = first + done < last_run ? first + done : last_run, entry = block_size.BlockOf(token);
      const int row = px::Load(at.table + entry) * p.rows_per_block + token - entry * block_size.tokens;
      PX_UNROLL
      for (int panel = 0; panel < Panels::kPanels; ++panel) {
        const int to = panel * Panels::kPanel + done * Panels::kPitch, column = at.kv_head * kDim + panel * 64;
        px::TmaLoad2D(smem.stage[s].k + to, &p.k, column, row, &smem.full[s]);
        px::TmaLoad2D(smem.stage[s].v + to, &p.v, column, row, &smem.full[s]);
      }
    }
  }
}

/// A warpgroup on its way over the sub-tiles of its 64 rows.
template <int kDim, bool kFixedTiles>
struct GroupWalk {
  using Shared = WgmmaPrefillShared<kDim, kFixedTiles>;
  using Panels = KvPanels<kDim>;
  static constexpr int kStages = Shared::kStages;
  static constexpr int kPanelStep = Panels::kPanel * 2 / 16, kDepthStep = 16 * 2 / 16;  ///< in a descriptor's units
  static constexpr int kRunStep = 16 * Panels::kPitch * 2 / 16;

  Shared& smem;
  const int first;  ///< sub-tile, which stands in stage 0
  const int group;
  const float scale_log2;
  RowRange range[2];
  PrefillRows rows = {};
  TileState<kDim> state = {};
  uint32_t p[kSubTileTokens / 16][4] = {};  ///< wgmma reads it until the products of the sub-tile are there

  PX_DEVICE int StageOf(int t) const { return (t - first) % kStages; }
  PX_DEVICE void AwaitStage(int t) { px::MbarrierWait(&smem.full[StageOf(t)], (t - first) / kStages & 1); }
  PX_DEVICE void LeaveStage(int t) {
    if (px::Lane() == 0) px::MbarrierArrive(&smem.empty[StageOf(t)]);
  }

  PX_DEVICE void BeginSubTile(int t) {
    if constexpr (kFixedTiles) {
      if (t % kSubTilesPerTile == 0 && t != first) EndTile();
    }
  }
  PX_DEVICE void EndTile() {
    state.ReduceSums();
    MergeTile<kDim>(smem.running[group], rows, state);
    state.Clear();
  }

  /// Begins s = q · k of sub-tile t.
  PX_DEVICE void BeginScores(float (&s)[8][4], int t) {
    AwaitStage(t);
    const uint64_t q = px::WgmmaDescriptor(smem.q[group]), k = px::WgmmaDescriptor(smem.stage[StageOf(t)].k);
    px::WgmmaFence();
    PX_UNROLL
    for (int d = 0; d < kDim / 16; ++d) {
      const int step = d / 4 * kPanelStep + d % 4 * kDepthStep;
      px::WgmmaM64N64K16(s, q + step, k + step, d != 0);
    }
    px::WgmmaCommit();
  }
  /// Begins o += p · v of sub-tile t.
  PX_DEVICE void BeginProducts(int t) {
    const uint64_t v = px::WgmmaRowsDescriptor(smem.stage[StageOf(t)].v);
    px::WgmmaFence();
    PX_UNROLL
    for (int n = 0; n < kSubTileTokens / 16; ++n) {
      PX_UNROLL
      for (int panel = 0; panel < Panels::kPanels; ++panel)
        px::WgmmaAddRows(reinterpret_cast<float(&)[8][4]>(state.o[panel * 8]), p[n],
                         v + panel * kPanelStep + n * kRunStep);
    }
    px::WgmmaCommit();
  }
  /// What is known of the rows' softmax within a fixed tile.
  struct TileSoftmax {
    float m[2], l[2];
  };
  /// The state's, which begins anew.
  PX_DEVICE TileSoftmax TakeSoftmax() {
    TileSoftmax taken;
    PX_UNROLL
    for (int h = 0; h < 2; ++h) {
      taken.m[h] = state.m[h], taken.l[h] = state.l[h];
      state.m[h] = kNegativeInfinity, state.l[h] = 0.0f;
    }
    return taken;
  }
  /// Ends the tile whose softmax was taken; the state's is that of the next.
  PX_DEVICE void EndTakenTile(const TileSoftmax& taken) {
    const TileSoftmax now = TakeSoftmax();
    PX_UNROLL
    for (int h = 0; h < 2; ++h) state.m[h] = taken.m[h], state.l[h] = taken.l[h];
    EndTile();
    PX_UNROLL
    for (int h = 0; h < 2; ++h) state.m[h] = now.m[h], state.l[h] = now.l[h];
  }

  /// [seen.first, seen.last), all of which every row sees. The products of a sub-tile are under way while the weights
  /// of the next are computed.
  PX_DEVICE void SeenSubTiles(const SubTiles& seen) {
    if (seen.first == seen.last) return;
    float s[kSubTileTokens / 8][4], alpha[2];
    const auto keep = [&](int h, float factor) { alpha[h] = factor; };
    BeginSubTile(seen.first);
    BeginScores(s, seen.first);
    px::WgmmaWait<0>();
    px::WgmmaResult(s);
    ScaleAndMask(s, range, 0, false, scale_log2, 0.0f);
    Softmax(state, s, [&](int h, float factor) { state.Rescale(h, factor); });
    PackWeights(p, s);
    PX_UNROLL_BY(1)
    for (int t = seen.first + 1; t < seen.last; ++t) {
      BeginScores(s, t);
      BeginProducts(t - 1);
      px::WgmmaWait<1>();  // the scores are there
      px::WgmmaResult(s);
      const bool tile_ended = kFixedTiles && t % kSubTilesPerTile == 0;
      TileSoftmax taken;
      if (tile_ended) taken = TakeSoftmax();
      ScaleAndMask(s, range, 0, false, scale_log2, 0.0f);
      Softmax(state, s, keep);
      px::WgmmaWait<0>();
      px::WgmmaResult(state.o);
      LeaveStage(t - 1);
      if (tile_ended) {
        EndTakenTile(taken);
      } else {
        state.Rescale(0, alpha[0]);
        state.Rescale(1, alpha[1]);
      }
      PackWeights(p, s);
    }
    BeginProducts(seen.last - 1);
    px::WgmmaWait<0>();
    px::WgmmaResult(state.o);
    LeaveStage(seen.last - 1);
  }

  /// Sub-tile t, of which some row may not see everything.
  PX_DEVICE void PartlySeenSubTile(int t) {
    BeginSubTile(t);
    const bool hides = HidesAny(range, t * kSubTileTokens, kSubTileTokens);
    AwaitStage(t);
    const typename Shared::Stage& stage = smem.stage[StageOf(t)];
    const bool wounded = hides && HoldsNonFinite<kDim, Panels, kSubTileTokens>(stage.v, 0);
    float s[kSubTileTokens / 8][4];
    Scores<kDim, Panels, Panels>(s, smem.q[group] + PrefillWarp() * kRowsPerWarp * Panels::kPitch, stage.k);
    ScaleAndMask(s, range, t * kSubTileTokens, hides, scale_log2, 0.0f);
    Accumulate<kDim, Panels>(state, s, range, t * kSubTileTokens, wounded, stage.v);
    px::SyncWarp();  // only ThreadSanitizer finds it: the lanes have met in mma
    LeaveStage(t);
  }
};

/// One warpgroup: 64 rows of one q head.
template <int kDim, bool kFixedTiles>
PX_DEVICE void AttendByGroup(WgmmaPrefillShared<kDim, kFixedTiles>& smem, const PrefillParams<px::bf16>& p, int q_head,
                             int group) {
  const PrefillTile tile = p.tiles[px::BlockX()];
  const PrefillPlace at = PlaceOf(p, tile.sequence, q_head);
  const SubTiles walk = SubTilesOf(tile, at, p.options.window);
  FetchQueries<kDim, KvPanels<kDim>>(smem.q[group], p, at, tile.first_row);
  px::CpAsyncCommit();
  GroupWalk<kDim, kFixedTiles> way{smem, walk.first, group, px::Mul(p.options.scale, kLog2E), {}};
  RangesOf(way.range, tile, at, p.options.window);
  way.state.Clear();
  if constexpr (kFixedTiles) {
    PX_UNROLL
    for (int i = 0; i < kDim / 8; ++i) px::StoreShared(&smem.running[group][i][PrefillThread()], px::U128{});
  }
  px::CpAsyncWait<0>();
  px::FenceAsyncProxy();
  px::BarSync(1 + group, kPrefillThreads);
  const SubTiles seen = SeenByAll(walk, tile, at, p.options.window);
  PX_UNROLL_BY(1)
  for (int t = walk.first; t < seen.first; ++t) way.PartlySeenSubTile(t);
  way.SeenSubTiles(seen);
  PX_UNROLL_BY(1)
  for (int t = seen.last; t < walk.last; ++t) way.PartlySeenSubTile(t);
  px::GridDependencyRelease();
  if constexpr (kFixedTiles) {
    way.EndTile();
    PX_UNROLL
    for (int h = 0; h < 2; ++h)
      StoreRow<kDim>(p, way.rows, q_head, h, [&](int i) {
        const px::U128 sum = px::LoadShared(&smem.running[group][i][PrefillThread()]);
        return px::F2{px::BitCast<float>(sum.w[2 * h]), px::BitCast<float>(sum.w[2 * h + 1])};
      });
  } else {
    way.state.ReduceSums();
    PX_UNROLL
    for (int h = 0; h < 2; ++h) {
      way.rows.m[h] = way.state.m[h];
      way.rows.l[h] = way.state.l[h];
      StoreRow<kDim>(p, way.rows, q_head, h,
                     [&](int i) { return px::F2{way.state.o[i][2 * h], way.state.o[i][2 * h + 1]}; });
    }
  }
}

#endif

template <int kDim, bool kFixedTiles>
PX_KERNEL void PX_BOUNDS(kWgmmaPrefillThreads, 1) WgmmaPrefillKernel(const PX_GRID_CONST WgmmaPrefillParams params) {
#if PX_HAS_WGMMA
  using Shared = WgmmaPrefillShared<kDim, kFixedTiles>;
  PX_SHARED(Shared, smem);
  const PrefillParams<px::bf16>& p = params.prefill;
  const int group = px::ThreadX() / kPrefillThreads;
  const HeadPair pair = HeadPairOf(p);
  if (px::ThreadX() == 0) InitStages(smem.full, smem.empty, pair.heads * kPrefillWarps);
  px::SyncThreads();
  px::GridDependencyWait();
  if (group == kWgmmaPrefillGroups) {
    px::RegisterDecrease<40>();
    if (px::ThreadX() == kWgmmaPrefillGroups * kPrefillThreads) FeedKv<kDim, kFixedTiles>(smem, params, pair.q_head);
    px::GridDependencyRelease();
    return;
  }
  if (group >= pair.heads) return;
  px::RegisterIncrease<232>();
  AttendByGroup<kDim, kFixedTiles>(smem, p, pair.q_head + group, group);
#else
  (void)params;
#endif
}

/// Which caches there is a form for.
template <typename Kv, int kDim>
constexpr bool kWgmmaPrefills = sizeof(Kv) == 2 && (kDim == 64 || kDim == 128);
/// Whether it takes the problem, on an architecture that HasWgmma.
template <int kDim>
bool WgmmaPrefillSuits(const PrefillParams<px::bf16>& p) {
  const auto aligned = [](const px::bf16* base) { return reinterpret_cast<uintptr_t>(base) % 16 == 0; };
  return p.options.softcap == 0.0f && p.q_heads >= 2 * p.kv.kv_heads && aligned(p.kv.k) && aligned(p.kv.v) &&
         p.kv.block_stride % (int64_t{p.kv.kv_heads} * kDim) == 0;
}

/// On sm_90 only, of what suits. tiles: how many entries p.tiles has.
template <int kDim, bool kFixedTiles>
void LaunchWgmmaPrefill(gpu::Stream& stream, const PrefillParams<px::bf16>& p, int tiles, bool programmatic = false) {
  if (tiles == 0) return;
  // Nobody says how many blocks the cache has; what tables name is inside.
  constexpr int kAnyRows = 0x7FFFFFFF;
  const int columns = p.kv.kv_heads * kDim, group = p.q_heads / p.kv.kv_heads;
  const int run = p.kv.block_size.tokens % 64 == 0 ? 64 : p.kv.block_size.tokens % 32 == 0 ? 32 : 16;
  const WgmmaPrefillParams params{gpu::MakeTensorMap2D(p.kv.k, columns, kAnyRows, columns, run),
                                  gpu::MakeTensorMap2D(p.kv.v, columns, kAnyRows, columns, run),
                                  static_cast<int>(p.kv.block_stride / columns), run, p};
  gpu::Launch(stream,
              {.grid = {static_cast<unsigned>(tiles), static_cast<unsigned>(p.kv.kv_heads * ((group + 1) / 2))},
               .block = {kWgmmaPrefillThreads},
               .shared_bytes = sizeof(WgmmaPrefillShared<kDim, kFixedTiles>),
               .programmatic = programmatic},
              &WgmmaPrefillKernel<kDim, kFixedTiles>, params);
}

}  // namespace baton::cuda
