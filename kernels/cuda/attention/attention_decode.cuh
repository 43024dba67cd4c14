// Decode attention: a few query tokens per sequence over a long paged context; split over KV, then combined.
//
// Floor per sequence of context n, per kv head: 2·n·d·bytes read once (the q heads of its group share an MMA tile),
// 8·n·d FLOP per q head: memory-bound. 8 × 16k, 8 kv heads of 128, bf16: 537 MB, 125 µs at 4.3 TB/s. Partials of the
// fixed form add 4·d·16 bytes per 256 tokens: 3 %. One warp per block walks a device-side work list, so the grid is
// fixed under CUDA graphs while lengths change. kFixedTiles (deterministic): one partial per 256-token tile.
#pragma once

#include "kernels/cuda/attention/attention_tile.cuh"
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

/// Rings of three warps fill an SM's shared memory; said to the compiler, which else spills to have more of them.
constexpr int kDecodeBlocksPerSm = 3;

template <typename Kv, int kDim>
struct DecodeShared {
  AttentionShared<Kv, kDim, 1> attention;
};
static_assert(kDecodeBlocksPerSm * sizeof(DecodeShared<px::bf16, 128>) <= 227 * 1024, "three warps' rings per SM");

template <typename Kv, int kDim, bool kFixedTiles>
PX_KERNEL void PX_BOUNDS(32, kDecodeBlocksPerSm) DecodeAttentionKernel(const PX_GRID_CONST DecodeParams<Kv> p) {
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
            float* o = p.partial_o + (partial * kRowsPerWarp + r) * kDim + (lane & 3) * 2;
            PX_UNROLL
            for (int i = 0; i < kDim / 8; ++i)
              px::Store(reinterpret_cast<px::F2*>(o + i * 8), px::F2{state.o[i][2 * h], state.o[i][2 * h + 1]});
            if ((lane & 3) == 0)
              px::Store(reinterpret_cast<px::F2*>(p.partial_ml + (partial * kRowsPerWarp + r) * 2),
                        px::F2{state.m[h], state.l[h]});
          }
        });
  }
}

constexpr int kCombineWarps = 4;
constexpr int kCombineBlocksPerSm = 10;  ///< at least: left to itself the compiler spills to have more

/// Merges a group's partials in index order, one warp per packed row of its kGroupRows.
template <typename Kv, int kDim, int kGroupRows = kRowsPerWarp>
PX_KERNEL void PX_BOUNDS(kCombineWarps * 32, kCombineBlocksPerSm)
    CombineKernel(const PX_GRID_CONST DecodeParams<Kv> p) {
  constexpr int kPerLane = (kDim + 31) / 32;
  const int lane = px::Lane(), heads_per_kv = p.q_heads / p.kv.kv_heads;
  px::GridDependencyWait();
  const int rows = px::Load(p.work.counts) * kGroupRows;
  for (int n = px::BlockX() * kCombineWarps + px::WarpIndex(); n < rows; n += px::GridX() * kCombineWarps) {
    const DecodeGroup group = p.work.groups[n / kGroupRows];
    const int r = n % kGroupRows, packed = group.first_row + r;
    const int row0 = px::Load(p.row_start + group.sequence),
              new_rows = px::Load(p.row_start + group.sequence + 1) - row0;
    if (packed >= new_rows * heads_per_kv) continue;
    float o[kPerLane] = {}, m = kNegativeInfinity, l = 0.0f;
    for (int i = 0; i < group.partials; ++i) {
      const int64_t partial = static_cast<int64_t>(group.first_partial + i) * kGroupRows + r;
      const px::F2 ml = px::Load(reinterpret_cast<const px::F2*>(p.partial_ml + partial * 2));
      if (ml.x == kNegativeInfinity) continue;
      const MergeFactors f = Merge(m, ml.x);
      PX_UNROLL
      for (int j = 0; j < kPerLane; ++j)
        if (j * 32 + lane < kDim) o[j] = MergeValue(o[j], px::Load(p.partial_o + partial * kDim + j * 32 + lane), f);
      l = MergeValue(l, ml.y, f);
      m = f.m;
    }
    const int head = group.kv_head * heads_per_kv + packed % heads_per_kv, row = row0 + packed / heads_per_kv;
    float v_scale = 1.0f;
    if constexpr (sizeof(Kv) == 1) v_scale = px::Load(p.kv.v_scale + group.kv_head);
    const RowFinish f = FinishRow(m, l, p.options.sinks, head, v_scale);
    px::bf16* out = p.out + row * p.out_stride + head * kDim;
    PX_UNROLL
    for (int j = 0; j < kPerLane; ++j)
      if (j * 32 + lane < kDim) px::Store(out + j * 32 + lane, px::FromFloat<px::bf16>(px::Mul(o[j], f.factor)));
    if (p.lse != nullptr && lane == 0) px::Store(p.lse + static_cast<int64_t>(row) * p.q_heads + head, f.lse);
  }
  px::GridDependencyRelease();
}

/// The grids do not depend on the batch: `blocks` is the SM count times kDecodeBlocksPerSm.
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
