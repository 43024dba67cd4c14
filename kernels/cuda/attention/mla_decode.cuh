// Decode attention over multi-head latent attention's cache (DeepSeek-V2 and later), absorbed form: all q heads share
// one latent vector per token; scores use all 576 elements, the values are its first 512. v1: mma.sync.
//
// Floor per sequence of context n and H q heads: reads 1,152·n bytes once per 64 packed rows (L2 serves the rest),
// computes 2·(576 + 512)·n·H FLOP: with H = 128 that is 242 FLOP per byte, bound by arithmetic (n = 8k, H = 128, batch
// 1: 2.3 GFLOP, 2.9 µs at 790 TFLOP/s; 9.4 MB, 2.2 µs at 4.3 TB/s). One block: 64 packed rows; warp w: rows of group w
// / 2, tokens and columns of half w % 2. The two warps of a row group exchange their scores through shared memory.
// Tiles, merging and work list are those of attention_decode.cuh; a partial is 64 rows of 512 floats, so the fixed form
// writes and reads 128 KiB per tile of 288 KiB: without --deterministic, items of many tiles. An e4m3 cache (576 bytes
// per token, value = stored · scale) halves the bytes and is widened into one bf16 stage before it is used: once for
// eight warps, of which each would convert 7.5 times as much in registers.
#pragma once

#include "kernels/cuda/attention/attention_decode.cuh"

namespace baton::cuda {

constexpr int kMlaDim = 576, kMlaLatent = 512;  ///< q and cache [latent 512 | rope 64]; output 512
constexpr int kMlaRowGroups = 4, kMlaRows = kMlaRowGroups * kRowsPerWarp;
constexpr int kMlaHalves = 2, kMlaThreads = kMlaRowGroups * kMlaHalves * 32;
constexpr int kMlaTokens = 32;  ///< of a sub-tile
constexpr int kMlaColumns = kMlaLatent / kMlaHalves;
constexpr int kMlaSubTiles = kTileTokens / kMlaTokens;

using MlaLayout = TileLayout<px::bf16, kMlaDim>;

template <typename Kv>
struct MlaWide {
  px::bf16 kv[kMlaTokens * MlaLayout::kPitch];
};
template <>
struct MlaWide<px::bf16> {};
template <typename Kv>
struct MlaShared : MlaWide<Kv> {
  px::bf16 q[kMlaRows * MlaLayout::kPitch];
  Kv stage[2][kMlaTokens * StageLayout<Kv, kMlaDim>::kPitch];
  px::F2 scores[kMlaRows][kMlaTokens / 2 + 4];  ///< + 4: rows begin 8 banks apart
};
static_assert(sizeof(MlaShared<px::bf16>) <= 227 * 1024 && sizeof(MlaShared<px::e4m3>) <= 227 * 1024);

template <typename Kv>
PX_DEVICE void FetchLatents(Kv* stage, const PagedKv<Kv>& kv, const int32_t* table, int length, int first) {
  using Layout = StageLayout<Kv, kMlaDim>;
  for (int i = px::ThreadX(); i < kMlaTokens * Layout::kChunks; i += kMlaThreads) {
    const int row = i / Layout::kChunks, chunk = i % Layout::kChunks, token = first + row;
    const bool valid = token < length;
    const int entry = kv.block_size.BlockOf(token), block = valid ? px::Load(table + entry) : 0;
    const int in_block = token - entry * kv.block_size.tokens;
    const int64_t at =
        valid ? block * kv.block_stride + in_block * static_cast<int64_t>(kMlaDim) + chunk * Layout::kChunk : 0;
    px::CpAsync16(stage + Layout::Offset(row, chunk), kv.k + at, valid);
  }
  px::CpAsyncCommit();
}

/// This warp's 16 rows × 16 tokens of q · k.
PX_DEVICE void MlaScores(float (&s)[2][4], const px::bf16* q, const px::bf16* k) {
  const int lane = px::Lane();
  const int q_row = lane & 15, q_chunk = lane >> 4, k_row = (lane & 7) + ((lane >> 4) << 3), k_chunk = (lane >> 3) & 1;
  PX_UNROLL
  for (int i = 0; i < 2; ++i) {
    PX_UNROLL
    for (int j = 0; j < 4; ++j) s[i][j] = 0.0f;
  }
  PX_UNROLL_BY(4)
  for (int d = 0; d < kMlaDim / 16; ++d) {
    uint32_t a[4], b[4];
    px::LdMatrixX4(a, q + MlaLayout::Offset(q_row, 2 * d + q_chunk));
    px::LdMatrixX4(b, k + MlaLayout::Offset(k_row, 2 * d + k_chunk));
    px::MmaBf16(s[0], a, b[0], b[1]);
    px::MmaBf16(s[1], a, b[2], b[3]);
  }
}

/// Both halves' scores of this row group, in both warps: the fragment of 16 rows × 32 tokens.
template <typename Kv>
PX_DEVICE void ExchangeScores(MlaShared<Kv>& smem, const float (&mine)[2][4], float (&all)[kMlaTokens / 8][4],
                              int row_group, int half) {
  const int row = row_group * kRowsPerWarp + px::Lane() / 4, column = px::Lane() & 3;  // column: of pairs
  PX_UNROLL
  for (int h = 0; h < 2; ++h) {
    PX_UNROLL
    for (int i = 0; i < 2; ++i)
      px::StoreShared(&smem.scores[row + 8 * h][half * 8 + i * 4 + column], px::F2{mine[i][2 * h], mine[i][2 * h + 1]});
  }
  px::BarSync(1 + row_group, kMlaHalves * 32);
  PX_UNROLL
  for (int h = 0; h < 2; ++h) {
    PX_UNROLL
    for (int i = 0; i < kMlaTokens / 8; ++i) {
      const px::F2 pair = px::LoadShared(&smem.scores[row + 8 * h][i * 4 + column]);
      all[i][2 * h] = pair.x;
      all[i][2 * h + 1] = pair.y;
    }
  }
}

template <typename Kv>
PX_DEVICE void StoreMlaPartial(const DecodeParams<Kv>& p, int64_t partial, int row_group, int half,
                               const TileState<kMlaColumns>& state) {
  const int lane = px::Lane();
  PX_UNROLL
  for (int h = 0; h < 2; ++h) {
    const int64_t row = partial * kMlaRows + row_group * kRowsPerWarp + lane / 4 + 8 * h;
    float* o = p.partial_o + row * kMlaLatent + half * kMlaColumns + (lane & 3) * 2;
    PX_UNROLL
    for (int i = 0; i < kMlaColumns / 8; ++i)
      px::Store(reinterpret_cast<px::F2*>(o + i * 8), px::F2{state.o[i][2 * h], state.o[i][2 * h + 1]});
    if (half == 0 && (lane & 3) == 0)
      px::Store(reinterpret_cast<px::F2*>(p.partial_ml + row * 2), px::F2{state.m[h], state.l[h]});
  }
}

/// p.q [rows, q_heads, 576], p.out [rows, q_heads, 512], p.kv.k [blocks, tokens_per_block, 576] with kv_heads = 1,
/// p.kv.v unused; e4m3: k_scale and v_scale [1] are the same; the plan's rows_per_group is kMlaRows.
template <typename Kv, bool kFixedTiles>
PX_KERNEL void PX_BOUNDS(kMlaThreads) MlaDecodeKernel(const PX_GRID_CONST DecodeParams<Kv> p) {
  constexpr bool kWiden = sizeof(Kv) == 1;
  PX_SHARED(MlaShared<Kv>, smem);
  const int lane = px::Lane(), row_group = px::WarpIndex() / kMlaHalves, half = px::WarpIndex() % kMlaHalves;
  px::GridDependencyWait();
  px::GridDependencyRelease();  // the combine kernel waits for the end of this one
  const int items = px::Load(p.work.counts + 1);
  for (int n = px::BlockX(); n < items; n += px::GridX()) {
    const DecodeItem item = p.work.items[n];
    const DecodeGroup group = p.work.groups[item.group];
    const int row0 = px::Load(p.row_start + group.sequence),
              new_rows = px::Load(p.row_start + group.sequence + 1) - row0;
    const int length = px::Load(p.kv.lengths + group.sequence * p.kv.length_stride);
    const int32_t* table = p.kv.tables + group.sequence * p.kv.table_stride;

    for (int i = px::ThreadX(); i < kMlaRows * MlaLayout::kChunks; i += kMlaThreads) {
      const int r = group.first_row + i / MlaLayout::kChunks, chunk = i % MlaLayout::kChunks;
      const bool valid = r < new_rows * p.q_heads;
      const int token = valid ? r / p.q_heads : 0, head = valid ? r % p.q_heads : 0;
      px::CpAsync16(smem.q + MlaLayout::Offset(i / MlaLayout::kChunks, chunk),
                    p.q + (row0 + token) * p.q_stride + head * kMlaDim + chunk * 8, valid);
    }
    RowRange rows[2];
    PX_UNROLL
    for (int h = 0; h < 2; ++h)
      rows[h] = DecodeRow(p, group.first_row + row_group * kRowsPerWarp + lane / 4 + 8 * h, p.q_heads, row0, new_rows,
                          length);

    const int sub_tiles = (length + kMlaTokens - 1) / kMlaTokens, first = item.first_tile * kMlaSubTiles;
    const int wanted = first + item.tiles * kMlaSubTiles, last = wanted < sub_tiles ? wanted : sub_tiles;
    float scale = p.options.scale;
    if constexpr (kWiden) scale = px::Mul(scale, px::Load(p.kv.k_scale));
    TileState<kMlaColumns> state;
    state.Clear();
    FetchLatents(smem.stage[first & 1], p.kv, table, length, first * kMlaTokens);
    for (int t = first; t < last; ++t) {
      if (t + 1 < last)
        FetchLatents(smem.stage[(t + 1) & 1], p.kv, table, length, (t + 1) * kMlaTokens);
      else
        px::CpAsyncCommit();
      px::CpAsyncWait<1>();
      const px::bf16* kv;
      if constexpr (kWiden) {  // a thread widens what it copied itself
        Widen<kMlaDim, kMlaThreads, kMlaTokens>(smem.kv, smem.stage[t & 1]);
        kv = smem.kv;
      } else {
        kv = smem.stage[t & 1];
      }
      px::SyncThreads();
      float mine[2][4], s[kMlaTokens / 8][4];
      MlaScores(mine, smem.q + row_group * kRowsPerWarp * MlaLayout::kPitch,
                kv + half * (kMlaTokens / 2) * MlaLayout::kPitch);
      ExchangeScores(smem, mine, s, row_group, half);
      constexpr int kColumnGroups = kMlaColumns / 16, kChunks = kMlaColumns / MlaLayout::kChunk;
      const bool hides = HidesAny(rows, t * kMlaTokens, kMlaTokens);
      const bool wounded = hides && HoldsNonFinite<kMlaColumns, MlaLayout, kMlaTokens>(kv, half * kChunks);
      ScaleAndMask(s, rows, t * kMlaTokens, hides, px::Mul(scale, kLog2E), p.options.softcap);
      Accumulate<kMlaColumns, MlaLayout>(state, s, rows, t * kMlaTokens, wounded, kv, half * kColumnGroups);
      px::SyncThreads();  // the stage and the scores are free
      if (t + 1 < last && (!kFixedTiles || t % kMlaSubTiles != kMlaSubTiles - 1)) continue;
      state.ReduceSums();
      StoreMlaPartial(p, item.first_partial + (kFixedTiles ? t / kMlaSubTiles - item.first_tile : 0), row_group, half,
                      state);
      state.Clear();
    }
    // No copy is in flight: the last group of an item is empty.
  }
}

/// `blocks`: one per SM (157 KiB of shared memory each), whatever the batch.
template <bool kFixedTiles, typename Kv>
void LaunchMlaDecode(gpu::Stream& stream, const DecodeParams<Kv>& p, int blocks, bool programmatic = true) {
  gpu::Launch(stream,
              {.grid = {static_cast<unsigned>(blocks)},
               .block = {kMlaThreads},
               .shared_bytes = sizeof(MlaShared<Kv>),
               .programmatic = programmatic},
              &MlaDecodeKernel<Kv, kFixedTiles>, p);
  gpu::Launch(stream, {.grid = {static_cast<unsigned>(blocks)}, .block = {kCombineWarps * 32}, .programmatic = true},
              &CombineKernel<Kv, kMlaLatent, kMlaRows>, p);
}

}  // namespace baton::cuda
