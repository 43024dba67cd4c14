// Decode attention: a few query tokens per sequence over a long paged context; split over KV, then combined.
//
// Floor per sequence of context n, per kv head: 2·n·d·bytes read once (the q heads of its group share an MMA tile),
// 8·n·d FLOP per q head: memory-bound. 8 × 16k, 8 kv heads of 128, bf16: 537 MB, 125 µs at 4.3 TB/s. Partials of the
// fixed form add 4·d bytes per row that is alive and 256 tokens, written and read again: with 4 heads to a kv head 1.6
// % each. One warp per block walks a device-side work list, so the grid is fixed under CUDA graphs while lengths
// change. kFixedTiles (deterministic): one partial per 256-token tile.
//
// E4m3 halves the bytes: 268 MB, 62 µs; partials are 3.1 % each. It is bound by instructions sooner than bf16: at the
// roof an SM gets a sub-tile of both (16 KiB) in 885 cycles. A warp spends ~1,900 instructions on it: 1,024 make bf16
// of 512 codes a lane, in registers, half of them on the pipe that takes one in two cycles (~1,150 cycles with
// 64 permutations of bytes); 128 loads bring K, 16 ldmatrix V, 128 are mma, the others copies and softmax. Widened into
// a bf16 stage, as it was, each code was stored and loaded once more (32 loads, 64 stores, 64 ldmatrix) and three rings
// with that stage filled an SM; six fit without it, as many bytes in flight as bf16 has, and 6 · 1,900 instructions are
// 1.5 warps for each of the four schedulers: 475 cycles a sub-tile in each, 288 on the pipe of conversions.
//
// Combining is bound by latency: its bytes are few. Of 32 partials at a time the maxima and sums come in one load, from
// which all their factors follow; then their values, of which none depends on another, 2 KB of them in flight for each
// warp. 8 × 16k: 64 partials of each of 256 rows, 8.4 MB, 2 µs at the roof; a warp's share is 8 KB, 2 · (1 + 2) loads
// after each other of ~0.7 µs, ~5 µs. With them 8 × 16k takes 554 MB at 4.3 TB/s and 5 µs: 134 µs, 4.0 TB/s of KV; the
// bar is 3.9. 1 × 128k: 512 partials of 32 rows, 16 · (1 + 2) loads, ~35 µs beside the ~150 µs of the walk (one at a
// time they were 512 loads after each other).
#pragma once

#include "kernels/cuda/attention/attention_tile.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

/// 16 packed rows of one (sequence, kv head): row r is query token r / group, head kv_head · group + r % group.
struct DecodeGroup {
  int32_t sequence, kv_head, first_row;  ///< first packed row
  int32_t first_partial, partials;       ///< its slice of the partial results
};
/// Some consecutive fixed tiles of a group.
struct DecodeItem {
  int32_t group, first_tile, tiles, first_partial;
};
struct DecodeWork {
  const DecodeGroup* groups;
  const DecodeItem* items;
  const int32_t* counts;  ///< {groups, items}, on the device
};

template <typename Kv>
struct DecodeParams {
  const px::bf16* q;  ///< [rows, q_heads, head_dim]
  px::bf16* out;      ///< [rows, q_heads, head_dim]
  float* lse;         ///< [rows, q_heads], or null
  int64_t q_stride, out_stride;
  const int32_t* row_start;  ///< [sequences + 1]; rows of a sequence are its newest tokens
  const uint32_t* tree;      ///< [rows] bit j: sees query token j of its sequence (≤ 32); null: causal
  DecodeWork work;
  float* partial_o;   ///< [partials, 16, head_dim]
  float* partial_ml;  ///< [partials, 16, 2]: maximum, sum
  PagedKv<Kv> kv;
  AttentionOptions options;
  int q_heads;
};

/// What packed row r of a group sees.
template <typename Kv>
PX_DEVICE RowRange DecodeRow(const DecodeParams<Kv>& p, int r, int heads_per_kv, int row0, int new_rows, int length) {
  const int token = r / heads_per_kv, context = length - new_rows;
  if (r >= new_rows * heads_per_kv) return SeesAll();
  RowRange row{0, context + token, kNoTree, 0};
  if (p.options.window > 0) row.first = context + token - p.options.window + 1;
  if (p.tree != nullptr) {
    row.last = length - 1;
    row.tree_base = context;
    row.tree = px::Load(p.tree + row0 + token);
  }
  return row;
}

/// As many warps' rings, of 128 columns, fill an SM's shared memory; said to the compiler, which else spills to have
/// more of them.
template <typename Kv>
constexpr int kDecodeBlocksPerSm = sizeof(Kv) == 1 ? 6 : 3;

template <typename Kv, int kDim>
struct DecodeShared {
  AttentionShared<Kv, kDim, 1> attention;
};
constexpr int kReservedPerBlock = 1024;  ///< bytes of shared memory that a block takes beside its own
template <typename Kv>
constexpr bool kRingsFit = kDecodeBlocksPerSm<Kv> * (sizeof(DecodeShared<Kv, 128>) + kReservedPerBlock) <= 228 * 1024;
static_assert(kRingsFit<px::bf16> && kRingsFit<px::e4m3>);

/// Row h of a tile's result, of kDim floats at `row`: what this thread holds of it.
template <typename Kv, int kDim>
PX_DEVICE void StorePartialRow(float* row, const TileState<kDim>& state, int h) {
  const int quarter = px::Lane() & 3;
  if constexpr (sizeof(Kv) == 1) {
    PX_UNROLL
    for (int i = 0; i < kDim / 16; ++i) {
      const float(&even)[4] = state.o[2 * i], (&odd)[4] = state.o[2 * i + 1];
      float* to = row + i * 16 + quarter * 4;
      if constexpr (kDim > 128) {  // no registers to gather four in
        px::Store(reinterpret_cast<px::F2*>(to), px::F2{even[2 * h], odd[2 * h]});
        px::Store(reinterpret_cast<px::F2*>(to + 2), px::F2{even[2 * h + 1], odd[2 * h + 1]});
      } else {
        const float four[4] = {even[2 * h], odd[2 * h], even[2 * h + 1], odd[2 * h + 1]};
        StoreVector(to, four);
      }
    }
  } else {
    PX_UNROLL
    for (int i = 0; i < kDim / 8; ++i)
      px::Store(reinterpret_cast<px::F2*>(row + i * 8 + quarter * 2), px::F2{state.o[i][2 * h], state.o[i][2 * h + 1]});
  }
}

template <typename Kv, int kDim, bool kFixedTiles>
PX_KERNEL void PX_BOUNDS(32, kDecodeBlocksPerSm<Kv>) DecodeAttentionKernel(const PX_GRID_CONST DecodeParams<Kv> p) {
  using Shared = DecodeShared<Kv, kDim>;
  using Layout = TileLayout<px::bf16, kDim>;
  PX_SHARED(Shared, smem);
  const int lane = px::Lane(), heads_per_kv = p.q_heads / p.kv.kv_heads;
  px::GridDependencyWait();
  px::GridDependencyRelease();  // the combine kernel waits for the end of this one
  const int items = px::Load(p.work.counts + 1);
  for (int n = px::BlockX(); n < items; n += px::GridX()) {
    const DecodeItem item = p.work.items[n];
    const DecodeGroup group = p.work.groups[item.group];
    const int row0 = px::Load(p.row_start + group.sequence),
              new_rows = px::Load(p.row_start + group.sequence + 1) - row0;
    const int length =
        px::Load(p.kv.lengths + group.sequence * p.kv.length_stride + group.kv_head * p.kv.length_head_stride);
    const int32_t* table = p.kv.tables + group.sequence * p.kv.table_stride + group.kv_head * p.kv.table_head_stride;
    const int packed_rows = new_rows * heads_per_kv;

    // WalkKv's last barrier is behind every read of the item before.
    for (int i = lane; i < kRowsPerWarp * Layout::kChunks; i += 32) {
      const int r = group.first_row + i / Layout::kChunks, chunk = i % Layout::kChunks;
      const bool valid = r < packed_rows;
      const int token = valid ? r / heads_per_kv : 0,
                head = group.kv_head * heads_per_kv + (valid ? r % heads_per_kv : 0);
      px::CpAsync16(smem.attention.q + Layout::Offset(i / Layout::kChunks, chunk),
                    p.q + (row0 + token) * p.q_stride + head * kDim + chunk * 8, valid);
    }
    RowRange rows[2];
    PX_UNROLL
    for (int h = 0; h < 2; ++h)
      rows[h] = DecodeRow(p, group.first_row + lane / 4 + 8 * h, heads_per_kv, row0, new_rows, length);
    float k_scale = 1.0f;
    if constexpr (sizeof(Kv) == 1) k_scale = px::Load(p.kv.k_scale + group.kv_head);
    const int sub_tiles = (length + kSubTileTokens - 1) / kSubTileTokens, first = item.first_tile * kSubTilesPerTile;
    const int wanted = first + item.tiles * kSubTilesPerTile;
    WalkKv<Kv, kDim, 1, kFixedTiles>(
        smem.attention, p.kv, table, length, group.kv_head, rows, first, wanted < sub_tiles ? wanted : sub_tiles,
        px::Mul(px::Mul(p.options.scale, k_scale), kLog2E), p.options.softcap, [&](int tile, TileState<kDim>& state) {
          const int64_t partial = item.first_partial + (kFixedTiles ? tile - item.first_tile : 0);
          PX_UNROLL
          for (int h = 0; h < 2; ++h) {
            const int r = lane / 4 + 8 * h;
            // Nobody combines it. With more columns there is no register to remember it in.
            if (kDim <= 128 && group.first_row + r >= packed_rows) continue;
            StorePartialRow<Kv>(p.partial_o + (partial * kRowsPerWarp + r) * kDim, state, h);
            if ((lane & 3) == 0)
              px::Store(reinterpret_cast<px::F2*>(p.partial_ml + (partial * kRowsPerWarp + r) * 2),
                        px::F2{state.m[h], state.l[h]});
          }
        });
  }
}

constexpr int kCombineWarps = 4;
constexpr int kCombineBlocksPerSm = 4;  ///< at least; a grid has three, of e4m3 six

constexpr int kWideColumns = 4;  ///< of a lane, where there are groups enough; else one

/// What the results so far and a partial are multiplied with, of partial i in lane i, 32 at a time.
struct CombineFactors {
  float running, partial, l;
  uint32_t visible;  ///< bit i: partial i has seen a token
};
/// Factors of partials 0 … n − 1 (n ≤ 32; ml: [n, kGroupRows, 2]) after those before, whose maximum is m; m is then the
/// maximum of all. The same as Merge of one after the other: a maximum does not depend on the order.
template <int kGroupRows>
PX_DEVICE CombineFactors FactorsOf(const float* ml, int n, float& m) {
  const int lane = px::Lane();
  px::F2 own{kNegativeInfinity, 0.0f};
  if (lane < n) own = px::Load(reinterpret_cast<const px::F2*>(ml + lane * kGroupRows * 2));
  float upto = own.x;  // the greatest of partials 0 … lane
  PX_UNROLL
  for (int step = 1; step < 32; step *= 2) {
    const float other = px::Shuffle(upto, lane >= step ? lane - step : lane);
    upto = px::Max(upto, other);
  }
  const float before = px::Shuffle(upto, lane > 0 ? lane - 1 : 0);
  const MergeFactors f = Merge(lane > 0 ? px::Max(m, before) : m, own.x);
  m = px::Max(m, px::Shuffle(upto, 31));
  return {f.running, f.tile, own.y, px::Ballot(own.x != kNegativeInfinity)};
}

/// One or four columns of a partial, as they are read.
template <int kColumns>
using CombineValues = std::conditional_t<kColumns == 1, float, px::U128>;
PX_DEVICE float ColumnOf(float values, int) { return values; }
PX_DEVICE float ColumnOf(const px::U128& values, int c) { return px::BitCast<float>(values.w[c]); }

/// Columns [kColumns · 32 · part, …) of one packed row: its partials in index order, by one warp.
template <int kDim, int kGroupRows, int kColumns, typename Kv>
PX_DEVICE void CombineRow(const DecodeParams<Kv>& p, const DecodeGroup& group, int r, int part, int row0) {
  using Values = CombineValues<kColumns>;
  constexpr int kAhead = 16 / kColumns;
  const int lane = px::Lane(), heads_per_kv = p.q_heads / p.kv.kv_heads, column = (part * 32 + lane) * kColumns;
  const bool has = column < kDim;
  const int64_t first = static_cast<int64_t>(group.first_partial) * kGroupRows + r;
  const float *ml = p.partial_ml + first * 2, *values = p.partial_o + first * kDim + (has ? column : 0);
  float o[kColumns] = {}, m = kNegativeInfinity, l = 0.0f;
  for (int done = 0; done < group.partials; done += 32) {
    const int n = group.partials - done < 32 ? group.partials - done : 32;
    const CombineFactors f = FactorsOf<kGroupRows>(ml + static_cast<int64_t>(done) * kGroupRows * 2, n, m);
    const float* base = values + static_cast<int64_t>(done) * kGroupRows * kDim;
    PX_UNROLL_BY(1)
    for (int i = 0; i < n; i += kAhead) {
      Values ahead[kAhead];
      PX_UNROLL
      for (int a = 0; a < kAhead; ++a)
        if (i + a < n) ahead[a] = px::Load(reinterpret_cast<const Values*>(base + (i + a) * kGroupRows * kDim));
      PX_UNROLL
      for (int a = 0; a < kAhead; ++a) {
        const MergeFactors merge{px::Shuffle(f.running, i + a), px::Shuffle(f.partial, i + a), 0.0f};
        const float partial_l = px::Shuffle(f.l, i + a);
        if ((f.visible >> (i + a) & 1) == 0) continue;
        PX_UNROLL
        for (int c = 0; c < kColumns; ++c) o[c] = MergeValue(o[c], ColumnOf(ahead[a], c), merge);
        l = MergeValue(l, partial_l, merge);
      }
    }
  }
  const int packed = group.first_row + r, head = group.kv_head * heads_per_kv + packed % heads_per_kv,
            row = row0 + packed / heads_per_kv;
  float v_scale = 1.0f;
  if constexpr (sizeof(Kv) == 1) v_scale = px::Load(p.kv.v_scale + group.kv_head);
  const RowFinish f = FinishRow(m, l, p.options.sinks, head, v_scale);
  if (has) {
    PX_UNROLL
    for (int c = 0; c < kColumns; ++c) o[c] = px::Mul(o[c], f.factor);
    px::bf16* out = p.out + row * p.out_stride + head * kDim + column;
    if constexpr (kColumns == 1)
      px::Store(out, px::FromFloat<px::bf16>(o[0]));
    else
      StoreVector(out, o);
  }
  if (p.lse != nullptr && part == 0 && lane == 0)
    px::Store(p.lse + static_cast<int64_t>(row) * p.q_heads + head, f.lse);
}

/// Merges a group's partials in index order, a packed row's columns in one warp or in several: with few groups there
/// are blocks for them. A column's bits do not depend on that.
template <typename Kv, int kDim, int kGroupRows = kRowsPerWarp>
PX_KERNEL void PX_BOUNDS(kCombineWarps * 32, kCombineBlocksPerSm)
    CombineKernel(const PX_GRID_CONST DecodeParams<Kv> p) {
  constexpr int kWideParts = (kDim + 32 * kWideColumns - 1) / (32 * kWideColumns), kNarrowParts = (kDim + 31) / 32;
  const int heads_per_kv = p.q_heads / p.kv.kv_heads;
  px::GridDependencyWait();
  const int groups = px::Load(p.work.counts);
  const bool narrow = groups * kNarrowParts <= px::GridX();
  const int parts = narrow ? kNarrowParts : kWideParts;
  int shares = groups > 0 ? px::GridX() / (groups * parts) : 1;  // of a group's rows
  shares = shares < 1 ? 1 : shares > kGroupRows / kCombineWarps ? kGroupRows / kCombineWarps : shares;
  for (int n = px::BlockX(); n < groups * parts * shares; n += px::GridX()) {
    const DecodeGroup group = p.work.groups[n % groups];
    const int part = n / groups % parts, share = n / (groups * parts);
    const int row0 = px::Load(p.row_start + group.sequence),
              new_rows = px::Load(p.row_start + group.sequence + 1) - row0;
    const int left = new_rows * heads_per_kv - group.first_row, rows = left < kGroupRows ? left : kGroupRows;
    for (int r = share * kCombineWarps + px::WarpIndex(); r < rows; r += shares * kCombineWarps) {
      if (narrow)
        CombineRow<kDim, kGroupRows, 1>(p, group, r, part, row0);
      else
        CombineRow<kDim, kGroupRows, kWideColumns>(p, group, r, part, row0);
    }
  }
  px::GridDependencyRelease();
}

/// The grids do not depend on the batch: `blocks` is the SM count times kDecodeBlocksPerSm<Kv>.
template <typename Kv, int kDim, bool kFixedTiles>
void LaunchDecodeAttention(gpu::Stream& stream, const DecodeParams<Kv>& p, int blocks, bool programmatic = true) {
  gpu::Launch(stream,
              {.grid = {static_cast<unsigned>(blocks)},
               .block = {32},
               .shared_bytes = sizeof(DecodeShared<Kv, kDim>),
               .programmatic = programmatic},
              &DecodeAttentionKernel<Kv, kDim, kFixedTiles>, p);
  gpu::Launch(stream, {.grid = {static_cast<unsigned>(blocks)}, .block = {kCombineWarps * 32}, .programmatic = true},
              &CombineKernel<Kv, kDim>, p);
}

}  // namespace baton::cuda
