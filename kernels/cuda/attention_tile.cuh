// The arithmetic that prefill and decode attention share, so that a row's bits do not depend on which of them ran it.
//
// A warp owns 16 query rows. KV comes in sub-tiles of 64 tokens (online softmax within), four of which are a fixed tile
// of 256 tokens counted from position 0. A tile's result (m, l, o) is merged into the row's running result in index
// order. Nothing a row computes depends on other rows: masked sub-tiles and tiles leave its state untouched.
// Logits are kept times log2(e), so that softmax is ex2.
#pragma once

#include "kernels/cuda/paged_kv.cuh"

namespace baton::cuda {

constexpr int kTileTokens = 256;
constexpr int kSubTilesPerTile = kTileTokens / kSubTileTokens;
constexpr int kRowsPerWarp = 16;
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kNegativeInfinity = -__builtin_huge_valf();
constexpr int kNoTree = 0x7FFFFFFF;

struct AttentionOptions {
  float scale;         ///< multiplies q · k
  int window;          ///< > 0: position p sees (p − window, p]
  float softcap;       ///< > 0: s ← cap · tanh(s / cap)
  const float* sinks;  ///< [q_heads] extra logit without a value, or null
};

/// Which tokens a query row sees: first ≤ j ≤ last; from tree_base on only those whose bit is set.
struct RowRange {
  int first, last;
  int tree_base;
  uint32_t tree;
};

/// Query rows and a two-stage ring of KV; e4m3 is widened into one bf16 stage before it is used.
template <typename Kv, int kDim, int kWarps>
struct AttentionShared {
  px::bf16 q[kWarps * kRowsPerWarp * TileLayout<px::bf16, kDim>::kPitch];
  KvStage<Kv, kDim> stage[2];
  WideStage<kDim, sizeof(Kv) == 1> wide;
};

/// One row pair's result of a tile: this thread holds rows lane / 4 and lane / 4 + 8, two columns of every 8.
template <int kDim>
struct TileState {
  float o[kDim / 8][4];
  float m[2], l[2];
  PX_DEVICE void Clear() {
    PX_UNROLL
    for (int i = 0; i < kDim / 8; ++i) {
      PX_UNROLL
      for (int j = 0; j < 4; ++j) o[i][j] = 0.0f;
    }
    m[0] = m[1] = kNegativeInfinity;
    l[0] = l[1] = 0.0f;
  }
  /// Sums l over the four lanes of a row; once per tile.
  PX_DEVICE void ReduceSums() {
    PX_UNROLL
    for (int h = 0; h < 2; ++h) {
      l[h] = px::Add(l[h], px::ShuffleXor(l[h], 1));
      l[h] = px::Add(l[h], px::ShuffleXor(l[h], 2));
    }
  }
};

/// Factors that bring the running result and a tile's to their common maximum.
struct MergeFactors {
  float running, tile, m;
};
/// Call only when the tile has a visible token (m_tile > −∞).
PX_DEVICE MergeFactors Merge(float m_running, float m_tile) {
  const float m = px::Max(m_running, m_tile);
  return {px::Exp2(m_running - m), px::Exp2(m_tile - m), m};
}
PX_DEVICE float MergeValue(float running, float tile, const MergeFactors& f) {
  return px::Fma(running, f.running, px::Mul(tile, f.tile));
}

/// What a finished row's o is multiplied with, and its log-sum-exp (natural, sink included).
struct RowFinish {
  float factor, lse;
};
PX_DEVICE RowFinish FinishRow(float m, float l, const float* sinks, int q_head, float v_scale) {
  constexpr float kLn2 = 0.6931471805599453f;
  if (m == kNegativeInfinity && sinks == nullptr) return {0.0f, kNegativeInfinity};
  float top = m, alpha = 1.0f;
  if (sinks != nullptr) {
    const float sink = px::Mul(px::Load(sinks + q_head), kLog2E);
    top = px::Max(m, sink);
    alpha = px::Exp2(m - top);
    l = px::Fma(l, alpha, px::Exp2(sink - top));
  }
  return {px::Mul(px::Mul(alpha, 1.0f / l), v_scale), px::Mul(top + px::Log2(l), kLn2)};
}

/// s[64 tokens] of 16 rows: q · k.
template <int kDim>
PX_DEVICE void Scores(float (&s)[kSubTileTokens / 8][4], const px::bf16* q, const px::bf16* k) {
  using Layout = TileLayout<px::bf16, kDim>;
  const int lane = px::Lane();
  const int q_row = lane & 15, q_chunk = lane >> 4, k_row = (lane & 7) + ((lane >> 4) << 3), k_chunk = (lane >> 3) & 1;
  PX_UNROLL
  for (int i = 0; i < kSubTileTokens / 8; ++i) {
    PX_UNROLL
    for (int j = 0; j < 4; ++j) s[i][j] = 0.0f;
  }
  PX_UNROLL
  for (int d = 0; d < kDim / 16; ++d) {
    uint32_t a[4];
    px::LdMatrixX4(a, q + Layout::Offset(q_row, 2 * d + q_chunk));
    PX_UNROLL
    for (int n = 0; n < kSubTileTokens / 16; ++n) {
      uint32_t b[4];
      px::LdMatrixX4(b, k + Layout::Offset(n * 16 + k_row, 2 * d + k_chunk));
      px::MmaBf16(s[2 * n], a, b[0], b[1]);
      px::MmaBf16(s[2 * n + 1], a, b[2], b[3]);
    }
  }
}

/// Scales, caps and masks the scores; after it they are logits · log2(e), −∞ where a row may not look.
template <int kGroups>
PX_DEVICE void ScaleAndMask(float (&s)[kGroups][4], const RowRange (&rows)[2], int first_token, float scale_log2,
                            float softcap) {
  if (softcap > 0.0f) {
    const float inner = scale_log2 / (kLog2E * softcap), outer = softcap * kLog2E;
    PX_UNROLL
    for (int i = 0; i < kGroups; ++i) {
      PX_UNROLL
      for (int j = 0; j < 4; ++j) s[i][j] = px::Mul(outer, px::Tanh(px::Mul(s[i][j], inner)));
    }
  } else {
    PX_UNROLL
    for (int i = 0; i < kGroups; ++i) {
      PX_UNROLL
      for (int j = 0; j < 4; ++j) s[i][j] = px::Mul(s[i][j], scale_log2);
    }
  }
  const int last_token = first_token + kGroups * 8 - 1;
  bool partly = false;
  PX_UNROLL
  for (int h = 0; h < 2; ++h)
    partly |= first_token < rows[h].first || last_token > rows[h].last || last_token >= rows[h].tree_base;
  if (px::Ballot(partly) == 0) return;
  PX_UNROLL
  for (int i = 0; i < kGroups; ++i) {
    PX_UNROLL
    for (int j = 0; j < 4; ++j) {
      const RowRange& row = rows[j >> 1];
      const int token = first_token + i * 8 + (px::Lane() & 3) * 2 + (j & 1);
      bool visible = token >= row.first && token <= row.last;
      if (token >= row.tree_base) visible = visible && (row.tree >> (token - row.tree_base) & 1u) != 0;
      if (!visible) s[i][j] = kNegativeInfinity;
    }
  }
}

/// Online softmax of one sub-tile into `state`, then o += p · v. v's columns begin at 16-byte chunk `first_chunk` of
/// rows in `Layout`.
template <int kDim, typename Layout = TileLayout<px::bf16, kDim>, int kGroups>
PX_DEVICE void Accumulate(TileState<kDim>& state, float (&s)[kGroups][4], const px::bf16* v, int first_chunk = 0) {
  PX_UNROLL
  for (int h = 0; h < 2; ++h) {
    float m = state.m[h];
    PX_UNROLL
    for (int i = 0; i < kGroups; ++i) m = px::Max(m, px::Max(s[i][2 * h], s[i][2 * h + 1]));
    m = px::Max(m, px::ShuffleXor(m, 1));
    m = px::Max(m, px::ShuffleXor(m, 2));
    const float base = m == kNegativeInfinity ? 0.0f : m;  // nothing visible yet: every p is 0
    const float alpha = px::Exp2(state.m[h] - base);
    state.m[h] = m;
    float sum = px::Mul(state.l[h], alpha);
    PX_UNROLL
    for (int i = 0; i < kDim / 8; ++i) {
      state.o[i][2 * h] = px::Mul(state.o[i][2 * h], alpha);
      state.o[i][2 * h + 1] = px::Mul(state.o[i][2 * h + 1], alpha);
    }
    PX_UNROLL
    for (int i = 0; i < kGroups; ++i) {
      PX_UNROLL
      for (int j = 2 * h; j < 2 * h + 2; ++j) {
        s[i][j] = px::Exp2(s[i][j] - base);
        sum = px::Add(sum, s[i][j]);
      }
    }
    state.l[h] = sum;
  }
  const int lane = px::Lane(), v_row = lane & 15, v_chunk = first_chunk + (lane >> 4);
  PX_UNROLL
  for (int n = 0; n < kGroups / 2; ++n) {
    const uint32_t p[4] = {px::PackBf16(s[2 * n][0], s[2 * n][1]), px::PackBf16(s[2 * n][2], s[2 * n][3]),
                           px::PackBf16(s[2 * n + 1][0], s[2 * n + 1][1]),
                           px::PackBf16(s[2 * n + 1][2], s[2 * n + 1][3])};
    PX_UNROLL
    for (int d = 0; d < kDim / 16; ++d) {
      uint32_t b[4];
      px::LdMatrixX4Trans(b, v + Layout::Offset(n * 16 + v_row, 2 * d + v_chunk));
      px::MmaBf16(state.o[2 * d], p, b[0], b[1]);
      px::MmaBf16(state.o[2 * d + 1], p, b[2], b[3]);
    }
  }
}

template <int kWarps>
PX_DEVICE void SyncBlock() {
  if constexpr (kWarps == 1)
    px::SyncWarp();
  else
    px::SyncThreads();
}

/// Walks sub-tiles [first, last) of one kv head for this warp's 16 rows, copies one sub-tile ahead. After the last
/// sub-tile of every fixed tile (kFixedTiles) and at the end, tile_done(tile, state) gets the result; state is then
/// cleared.
template <typename Kv, int kDim, int kWarps, bool kFixedTiles, typename TileDone>
PX_DEVICE void WalkKv(AttentionShared<Kv, kDim, kWarps>& smem, const PagedKv<Kv>& kv, const int32_t* table, int length,
                      int head, const RowRange (&rows)[2], int first, int last, float scale_log2, float softcap,
                      TileDone&& tile_done) {
  constexpr int kThreads = kWarps * 32;
  TileState<kDim> state;
  state.Clear();
  const px::bf16* q = smem.q + px::WarpIndex() * kRowsPerWarp * TileLayout<px::bf16, kDim>::kPitch;
  FetchKv<Kv, kDim, kThreads>(smem.stage[first & 1], kv, table, length, head, first * kSubTileTokens);
  px::CpAsyncCommit();
  for (int t = first; t < last; ++t) {
    if (t + 1 < last)
      FetchKv<Kv, kDim, kThreads>(smem.stage[(t + 1) & 1], kv, table, length, head, (t + 1) * kSubTileTokens);
    px::CpAsyncCommit();
    px::CpAsyncWait<1>();
    SyncBlock<kWarps>();
    const px::bf16 *k_tile, *v_tile;
    if constexpr (sizeof(Kv) == 1) {
      Widen<kDim, kThreads>(smem.wide.k, smem.stage[t & 1].k);
      Widen<kDim, kThreads>(smem.wide.v, smem.stage[t & 1].v);
      SyncBlock<kWarps>();
      k_tile = smem.wide.k;
      v_tile = smem.wide.v;
    } else {
      k_tile = smem.stage[t & 1].k;
      v_tile = smem.stage[t & 1].v;
    }
    float s[kSubTileTokens / 8][4];
    Scores<kDim>(s, q, k_tile);
    ScaleAndMask(s, rows, t * kSubTileTokens, scale_log2, softcap);
    Accumulate(state, s, v_tile);
    SyncBlock<kWarps>();
    const bool tile_ends = kFixedTiles && t % kSubTilesPerTile == kSubTilesPerTile - 1;
    if (tile_ends || t + 1 == last) {
      state.ReduceSums();
      tile_done(t / kSubTilesPerTile, state);
      state.Clear();
    }
  }
  // No copy is in flight: the last group is empty.
}

}  // namespace baton::cuda
