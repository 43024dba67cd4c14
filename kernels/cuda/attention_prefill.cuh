// Prefill attention: ragged queries, causal over a paged context, sliding window, soft-cap, sinks.
//
// Floor per sequence of n new tokens at context c, per q head: 4·d·Σ(c + i) FLOP ≈ 4·d·n·(c + n/2); reads
// 2·(c + n)·d·bytes per kv head once per 64 query rows (L2), writes 2·n·d bytes. 8k causal, 64 heads of 128: 1.1 TFLOP,
// 1.4 ms at 790 TFLOP/s; this kernel aims at ≥ 350 (mma.sync). One block: 64 rows of one q head, 4 warps × 16 rows.
// kFixedTiles is the deterministic form: bits equal those of attention_decode.cuh.
#pragma once

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

/// 64 consecutive rows of one sequence; the host lists them, longest context first.
struct PrefillTile {
  int32_t sequence, first_row;  ///< row within the sequence's new tokens
};

template <typename Kv>
struct PrefillParams {
  const px::bf16* q;           ///< [rows, q_heads, head_dim]
  px::bf16* out;               ///< [rows, q_heads, head_dim]
  float* lse;                  ///< [rows, q_heads] natural log-sum-exp, or null
  int64_t q_stride, out_stride;
  const PrefillTile* tiles;    ///< [grid.x]
  const int32_t* row_start;    ///< [sequences + 1]
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

template <typename Kv, int kDim, bool kFixedTiles>
PX_KERNEL void PX_BOUNDS(kPrefillThreads) PrefillAttentionKernel(const PX_GRID_CONST PrefillParams<Kv> p) {
  using Shared = PrefillShared<Kv, kDim, kFixedTiles>;
  using Layout = TileLayout<px::bf16, kDim>;
  PX_SHARED(Shared, smem);
  const int t = px::ThreadX(), lane = px::Lane(), q_head = px::BlockY();
  px::GridDependencyWait();
  const PrefillTile tile = p.tiles[px::BlockX()];
  const int group = p.q_heads / p.kv.kv_heads, kv_head = q_head / group;
  const int row0 = px::Load(p.row_start + tile.sequence), new_rows = px::Load(p.row_start + tile.sequence + 1) - row0;
  const int length = px::Load(p.kv.lengths + tile.sequence * p.kv.length_stride + kv_head * p.kv.length_head_stride);
  const int context = length - new_rows;
  const int32_t* table = p.kv.tables + tile.sequence * p.kv.table_stride + kv_head * p.kv.table_head_stride;

  for (int i = t; i < kPrefillRows * Layout::kChunks; i += kPrefillThreads) {
    const int row = i / Layout::kChunks, chunk = i % Layout::kChunks;
    const bool valid = tile.first_row + row < new_rows;
    const int64_t source = row0 + (valid ? tile.first_row + row : 0);
    px::CpAsync16(smem.attention.q + Layout::Offset(row, chunk), p.q + source * p.q_stride + q_head * kDim + chunk * 8, valid);
  }

  RowRange rows[2];
  float m[2] = {kNegativeInfinity, kNegativeInfinity}, l[2] = {0.0f, 0.0f};
  int row_of[2];
  PX_UNROLL
  for (int h = 0; h < 2; ++h) {
    row_of[h] = tile.first_row + px::WarpIndex() * kRowsPerWarp + lane / 4 + 8 * h;
    const int position = context + row_of[h];
    rows[h] = {p.options.window > 0 ? position - p.options.window + 1 : 0, row_of[h] < new_rows ? position : -1, kNoTree, 0};
  }
  const int first_position = context + tile.first_row;
  const int end = first_position + kPrefillRows < length ? first_position + kPrefillRows : length;
  int first = 0;
  if (p.options.window > 0 && first_position >= p.options.window)
    first = (first_position - p.options.window + 1) / kTileTokens * kSubTilesPerTile;
  float k_scale = 1.0f, v_scale = 1.0f;
  if constexpr (sizeof(Kv) == 1) {
    k_scale = px::Load(p.kv.k_scale + kv_head);
    v_scale = px::Load(p.kv.v_scale + kv_head);
  }

  auto write = [&](int h, int i, float x, float y, float factor) {
    px::bf16* out = p.out + (row0 + row_of[h]) * p.out_stride + q_head * kDim + i * 8 + (lane & 3) * 2;
    px::Store(reinterpret_cast<uint32_t*>(out), px::PackBf16(px::Mul(x, factor), px::Mul(y, factor)));
  };
  auto finish = [&](int h) {
    const RowFinish f = FinishRow(m[h], l[h], p.options.sinks, q_head, v_scale);
    if (p.lse != nullptr && (lane & 3) == 0 && row_of[h] < new_rows)
      px::Store(p.lse + static_cast<int64_t>(row0 + row_of[h]) * p.q_heads + q_head, f.lse);
    return f.factor;
  };

  if constexpr (kFixedTiles) {
    PX_UNROLL
    for (int i = 0; i < kDim / 8; ++i) px::StoreShared(&smem.running[i][t], px::U128{});
  }
  WalkKv<Kv, kDim, kPrefillWarps, kFixedTiles>(
      smem.attention, p.kv, table, length, kv_head, rows, first, (end + kSubTileTokens - 1) / kSubTileTokens,
      px::Mul(px::Mul(p.options.scale, k_scale), kLog2E), p.options.softcap, [&](int, TileState<kDim>& state) {
        if constexpr (kFixedTiles) {
          MergeFactors f[2];
          PX_UNROLL
          for (int h = 0; h < 2; ++h) {
            f[h] = {1.0f, 0.0f, m[h]};
            if (state.m[h] == kNegativeInfinity) continue;
            f[h] = Merge(m[h], state.m[h]);
            l[h] = MergeValue(l[h], state.l[h], f[h]);
            m[h] = f[h].m;
          }
          PX_UNROLL
          for (int i = 0; i < kDim / 8; ++i) {
            px::U128 running = px::LoadShared(&smem.running[i][t]);
            PX_UNROLL
            for (int j = 0; j < 4; ++j) {
              const float merged = MergeValue(px::BitCast<float>(running.w[j]), state.o[i][j], f[j >> 1]);
              if (state.m[j >> 1] != kNegativeInfinity) running.w[j] = px::BitCast<uint32_t>(merged);
            }
            px::StoreShared(&smem.running[i][t], running);
          }
        } else {
          PX_UNROLL
          for (int h = 0; h < 2; ++h) {
            m[h] = state.m[h];
            l[h] = state.l[h];
            const float factor = finish(h);
            if (row_of[h] >= new_rows) continue;
            PX_UNROLL
            for (int i = 0; i < kDim / 8; ++i) write(h, i, state.o[i][2 * h], state.o[i][2 * h + 1], factor);
          }
        }
      });
  px::GridDependencyRelease();
  if constexpr (kFixedTiles) {
    PX_UNROLL
    for (int h = 0; h < 2; ++h) {
      const float factor = finish(h);
      if (row_of[h] >= new_rows) continue;
      PX_UNROLL
      for (int i = 0; i < kDim / 8; ++i) {
        const px::U128 running = px::LoadShared(&smem.running[i][t]);
        write(h, i, px::BitCast<float>(running.w[2 * h]), px::BitCast<float>(running.w[2 * h + 1]), factor);
      }
    }
  }
}

/// tiles: how many entries p.tiles has.
template <typename Kv, int kDim, bool kFixedTiles>
void LaunchPrefillAttention(gpu::Stream& stream, const PrefillParams<Kv>& p, int tiles, bool programmatic = false) {
  if (tiles == 0) return;
  gpu::Launch(stream, {.grid = {static_cast<unsigned>(tiles), static_cast<unsigned>(p.q_heads)}, .block = {kPrefillThreads},
                       .shared_bytes = sizeof(PrefillShared<Kv, kDim, kFixedTiles>), .programmatic = programmatic},
              &PrefillAttentionKernel<Kv, kDim, kFixedTiles>, p);
}

}  // namespace baton::cuda
