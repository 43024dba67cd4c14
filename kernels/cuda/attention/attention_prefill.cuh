// Prefill attention: ragged queries, causal over a paged context, sliding window, soft-cap, sinks.
//
// Floor per sequence of n new tokens at context c, per q head: 4·d·Σ(c + i) FLOP ≈ 4·d·n·(c + n/2); reads
// 2·(c + n)·d·bytes per kv head once per 64 query rows (L2), writes 2·n·d bytes. 8k causal, 64 heads of 128: 1.1 TFLOP,
// 1.4 ms at 790 TFLOP/s; this kernel aims at ≥ 350 (mma.sync). One block: 64 rows of one q head, 4 warps × 16 rows.
// E4m3 is widened into a bf16 stage, once for all of them: of a sub-tile of 128 columns a lane converts 128 codes and has
// 8 loads and 16 stores of 16 bytes for it. In registers every warp would convert all 512 itself (1,024 instructions
// a lane beside 128 mma, ~1,150 cycles on the pipe of conversions where the mma take ~830).
// kFixedTiles is the deterministic form: bits equal those of attention_decode.cuh.
#pragma once

#include "kernels/cuda/attention/attention_tile.cuh"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

/// 64 consecutive rows of one sequence; the host lists them, longest context first.
struct PrefillTile {
  int32_t sequence, first_row;  ///< row within the sequence's new tokens
};

template <typename Kv>
struct PrefillParams {
  const px::bf16* q;  ///< [rows, q_heads, head_dim]
  px::bf16* out;      ///< [rows, q_heads, head_dim]
  float* lse;         ///< [rows, q_heads] natural log-sum-exp, or null
  int64_t q_stride, out_stride;
  const PrefillTile* tiles;  ///< [grid.x]
  const int32_t* row_start;  ///< [sequences + 1]
  PagedKv<Kv> kv;
  AttentionOptions options;
  int q_heads;
};

constexpr int kPrefillWarps = 4;
constexpr int kPrefillThreads = kPrefillWarps * 32;
constexpr int kPrefillRows = kPrefillWarps * kRowsPerWarp;

template <typename Kv, int kDim, bool kFixedTiles>
struct PrefillShared {
  AttentionShared<Kv, kDim, kPrefillWarps> attention;
  /// Running result, each thread its own column: 4 floats per (8-column group, thread).
  px::U128 running[kFixedTiles ? kDim / 8 : 1][kPrefillThreads];
};
static_assert(sizeof(PrefillShared<px::bf16, 256, true>) <= 227 * 1024);
static_assert(2 * sizeof(PrefillShared<px::bf16, 128, true>) <= 227 * 1024, "two blocks per SM");

/// Where 64 rows are: one q head of one sequence.
struct PrefillPlace {
  int q_head, kv_head, row0, new_rows, length, context;
  const int32_t* table;
};
template <typename Kv>
PX_DEVICE PrefillPlace PlaceOf(const PrefillParams<Kv>& p, int sequence, int q_head) {
  PrefillPlace at;
  at.q_head = q_head;
  at.kv_head = at.q_head / (p.q_heads / p.kv.kv_heads);
  at.row0 = px::Load(p.row_start + sequence);
  at.new_rows = px::Load(p.row_start + sequence + 1) - at.row0;
  at.length = px::Load(p.kv.lengths + sequence * p.kv.length_stride + at.kv_head * p.kv.length_head_stride);
  at.context = at.length - at.new_rows;
  at.table = p.kv.tables + sequence * p.kv.table_stride + at.kv_head * p.kv.table_head_stride;
  return at;
}

/// A thread's number among the 128 that have a tile, and its warp's.
PX_DEVICE int PrefillThread() { return px::ThreadX() % kPrefillThreads; }
PX_DEVICE int PrefillWarp() { return px::WarpIndex() % kPrefillWarps; }

/// Starts the copies of the tile's 64 query rows; rows past the sequence become zero.
template <int kDim, typename Layout, typename Kv>
PX_DEVICE void FetchQueries(px::bf16* q, const PrefillParams<Kv>& p, const PrefillPlace& at, int first_row) {
  for (int i = PrefillThread(); i < kPrefillRows * Layout::kChunks; i += kPrefillThreads) {
    const int row = i / Layout::kChunks, chunk = i % Layout::kChunks;
    const bool valid = first_row + row < at.new_rows;
    const int64_t source = at.row0 + (valid ? first_row + row : 0);
    px::CpAsync16(q + Layout::Offset(row, chunk), p.q + source * p.q_stride + at.q_head * kDim + chunk * 8, valid);
  }
}

/// Which row of the tile's sequence this thread's row h (0 or 1) is.
PX_DEVICE int PrefillRow(const PrefillTile& tile, int h) {
  return tile.first_row + PrefillWarp() * kRowsPerWarp + px::Lane() / 4 + 8 * h;
}
/// What this thread's two rows see; rows past the sequence, whose results nobody reads, see everything.
PX_DEVICE void RangesOf(RowRange (&range)[2], const PrefillTile& tile, const PrefillPlace& at, int window) {
  PX_UNROLL
  for (int h = 0; h < 2; ++h) {
    const int row = PrefillRow(tile, h), position = at.context + row;
    range[h] = SeesAll();
    if (row < at.new_rows) range[h] = {window > 0 ? position - window + 1 : 0, position, kNoTree, 0};
  }
}
/// The sub-tiles that a tile's rows look at: [first, last), from the beginning of a fixed tile on.
struct SubTiles {
  int first, last;
};
PX_DEVICE SubTiles SubTilesOf(const PrefillTile& tile, const PrefillPlace& at, int window) {
  const int first_position = at.context + tile.first_row;
  const int end = first_position + kPrefillRows < at.length ? first_position + kPrefillRows : at.length;
  int first = 0;
  if (window > 0 && first_position >= window) first = (first_position - window + 1) / kTileTokens * kSubTilesPerTile;
  return {first, (end + kSubTileTokens - 1) / kSubTileTokens};
}
/// What is known of the softmax of this thread's two rows.
struct PrefillRows {
  float m[2] = {kNegativeInfinity, kNegativeInfinity}, l[2] = {0.0f, 0.0f};
};

/// Adds a fixed tile's result to the running one.
template <int kDim>
PX_DEVICE void MergeTile(px::U128 (*running)[kPrefillThreads], PrefillRows& rows, const TileState<kDim>& state) {
  MergeFactors f[2];
  PX_UNROLL
  for (int h = 0; h < 2; ++h) {
    f[h] = {1.0f, 0.0f, rows.m[h]};
    if (state.m[h] == kNegativeInfinity) continue;
    f[h] = Merge(rows.m[h], state.m[h]);
    rows.l[h] = MergeValue(rows.l[h], state.l[h], f[h]);
    rows.m[h] = f[h].m;
  }
  PX_UNROLL
  for (int i = 0; i < kDim / 8; ++i) {
    px::U128 sum = px::LoadShared(&running[i][PrefillThread()]);
    PX_UNROLL
    for (int j = 0; j < 4; ++j) {
      const float merged = MergeValue(px::BitCast<float>(sum.w[j]), state.o[i][j], f[j >> 1]);
      if (state.m[j >> 1] != kNegativeInfinity) sum.w[j] = px::BitCast<uint32_t>(merged);
    }
    px::StoreShared(&running[i][PrefillThread()], sum);
  }
}

/// Writes row h: value(i) gives this thread's pair of column group i, not yet divided by the sum. Reads again where it
/// works, which else took registers all the time.
template <int kDim, typename Kv, typename Value>
PX_DEVICE void StoreRow(const PrefillParams<Kv>& p, const PrefillRows& rows, int q_head, int h, Value&& value) {
  const PrefillTile tile = p.tiles[px::BlockX()];
  const PrefillPlace at = PlaceOf(p, tile.sequence, q_head);
  if (PrefillRow(tile, h) >= at.new_rows) return;
  float v_scale = 1.0f;
  if constexpr (sizeof(Kv) == 1) v_scale = px::Load(p.kv.v_scale + at.kv_head);
  const int lane = px::Lane();
  const int64_t row = at.row0 + PrefillRow(tile, h);
  const RowFinish f = FinishRow(rows.m[h], rows.l[h], p.options.sinks, at.q_head, v_scale);
  if (p.lse != nullptr && (lane & 3) == 0) px::Store(p.lse + row * p.q_heads + at.q_head, f.lse);
  px::bf16* out = p.out + row * p.out_stride + at.q_head * kDim + (lane & 3) * 2;
  PX_UNROLL
  for (int i = 0; i < kDim / 8; ++i) {
    const px::F2 v = value(i);
    px::Store(reinterpret_cast<uint32_t*>(out + i * 8), px::PackBf16(px::Mul(v.x, f.factor), px::Mul(v.y, f.factor)));
  }
}

/// Blocks per SM, as shared memory allows: left to itself the compiler spills to have more. 0: nothing is said.
template <int kDim>
constexpr int kPrefillMinBlocks = PX_SM100_OR((kDim > 128 ? 0 : 2), (kDim > 128  ? 0
                                                                     : kDim > 80 ? 2
                                                                                 : 3));

template <typename Kv, int kDim, bool kFixedTiles>
PX_KERNEL void PX_BOUNDS(kPrefillThreads, kPrefillMinBlocks<kDim>)
    PrefillAttentionKernel(const PX_GRID_CONST PrefillParams<Kv> p) {
  using Shared = PrefillShared<Kv, kDim, kFixedTiles>;
  PX_SHARED(Shared, smem);
  const int t = px::ThreadX();
  px::GridDependencyWait();
  const PrefillTile tile = p.tiles[px::BlockX()];
  const PrefillPlace at = PlaceOf(p, tile.sequence, px::BlockY());
  FetchQueries<kDim, TileLayout<px::bf16, kDim>>(smem.attention.q, p, at, tile.first_row);

  PrefillRows rows;
  RowRange range[2];
  RangesOf(range, tile, at, p.options.window);
  const SubTiles walk = SubTilesOf(tile, at, p.options.window);
  float k_scale = 1.0f;
  if constexpr (sizeof(Kv) == 1) k_scale = px::Load(p.kv.k_scale + at.kv_head);
  if constexpr (kFixedTiles) {
    PX_UNROLL
    for (int i = 0; i < kDim / 8; ++i) px::StoreShared(&smem.running[i][t], px::U128{});
  }
  WalkKv<Kv, kDim, kPrefillWarps, kFixedTiles>(
      smem.attention, p.kv, at.table, at.length, at.kv_head, range, walk.first, walk.last,
      px::Mul(px::Mul(p.options.scale, k_scale), kLog2E), p.options.softcap, [&](int, TileState<kDim>& state) {
        if constexpr (kFixedTiles) {
          MergeTile<kDim>(smem.running, rows, state);
        } else {
          PX_UNROLL
          for (int h = 0; h < 2; ++h) {
            rows.m[h] = state.m[h];
            rows.l[h] = state.l[h];
            StoreRow<kDim>(p, rows, px::BlockY(), h,
                           [&](int i) { return px::F2{state.o[i][2 * h], state.o[i][2 * h + 1]}; });
          }
        }
      });
  px::GridDependencyRelease();
  if constexpr (kFixedTiles) {
    PX_UNROLL
    for (int h = 0; h < 2; ++h)
      StoreRow<kDim>(p, rows, px::BlockY(), h, [&](int i) {
        const px::U128 running = px::LoadShared(&smem.running[i][t]);
        return px::F2{px::BitCast<float>(running.w[2 * h]), px::BitCast<float>(running.w[2 * h + 1])};
      });
  }
}

/// tiles: how many entries p.tiles has. head_dim 256 has the fixed form only: the other would spill.
template <typename Kv, int kDim, bool kFixedTilesAsked>
void LaunchPrefillAttention(gpu::Stream& stream, const PrefillParams<Kv>& p, int tiles, bool programmatic = false) {
  constexpr bool kFixedTiles = kFixedTilesAsked || kDim > 128;
  if (tiles == 0) return;
  gpu::Launch(stream,
              {.grid = {static_cast<unsigned>(tiles), static_cast<unsigned>(p.q_heads)},
               .block = {kPrefillThreads},
               .shared_bytes = sizeof(PrefillShared<Kv, kDim, kFixedTiles>),
               .programmatic = programmatic},
              &PrefillAttentionKernel<Kv, kDim, kFixedTiles>, p);
}

}  // namespace baton::cuda
