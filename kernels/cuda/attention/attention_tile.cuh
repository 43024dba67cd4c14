// The arithmetic that prefill and decode attention share, so that a row's bits do not depend on which of them ran it.
//
// A warp owns 16 query rows. KV comes in sub-tiles of 64 tokens (online softmax within, in one step or two), four of
// which are a fixed tile of 256 tokens counted from position 0. A tile's result (m, l, o) is merged into the row's
// running result in index order. Nothing a row computes depends on other rows: masked sub-tiles and tiles leave its
// state untouched. Logits are kept times log2(e), so that softmax is ex2.
#pragma once

#include "kernels/cuda/attention/kv_fragments.cuh"
#include "kernels/cuda/kv/paged_kv.cuh"

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

/// Whether e4m3 is widened into a bf16 stage before it is used: once for several warps. A warp alone reads codes and
/// makes bf16 of them in registers (kv_fragments.cuh).
template <typename Kv, int kWarps>
constexpr bool kWidensKv = sizeof(Kv) == 1 && kWarps > 1;

/// Query rows and a two-stage ring of KV.
template <typename Kv, int kDim, int kWarps>
struct AttentionShared {
  px::bf16 q[kWarps * kRowsPerWarp * TileLayout<px::bf16, kDim>::kPitch];
  KvStage<Kv, StageLayout<Kv, kDim, kWidensKv<Kv, kWarps>>> stage[2];
  WideStage<kDim, kWidensKv<Kv, kWarps>> wide;
};

/// One row pair's result of a tile: this thread holds rows lane / 4 and lane / 4 + 8, of their columns what
/// kv_fragments.cuh says.
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
  /// Brings row h of o to another maximum.
  PX_DEVICE void Rescale(int h, float alpha) {
    PX_UNROLL
    for (int i = 0; i < kDim / 8; ++i) {
      o[i][2 * h] = px::Mul(o[i][2 * h], alpha);
      o[i][2 * h + 1] = px::Mul(o[i][2 * h + 1], alpha);
    }
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

/// Tokens whose scores a warp holds at a time: with 256 columns of o sm_100's code has registers for half a sub-tile.
template <int kDim>
constexpr int kStepTokens = PX_SM100_OR((kDim > 128 ? kSubTileTokens / 2 : kSubTileTokens), kSubTileTokens);

/// s[8 · kGroups tokens] of 16 rows: q · k.
template <int kDim, typename QLayout, typename Layout, typename Kv, int kGroups>
PX_DEVICE void Scores(float (&s)[kGroups][4], const px::bf16* q, const Kv* k) {
  const int q_row = px::Lane() & 15, q_chunk = px::Lane() >> 4;
  PX_UNROLL
  for (int i = 0; i < kGroups; ++i) {
    PX_UNROLL
    for (int j = 0; j < 4; ++j) s[i][j] = 0.0f;
  }
  PX_UNROLL
  for (int d = 0; d < kDim / 16; ++d) {
    uint32_t a[4];
    px::LdMatrixX4(a, q + QLayout::Offset(q_row, 2 * d + q_chunk));
    PX_UNROLL
    for (int n = 0; n < kGroups / 2; ++n) {
      uint32_t b[4];
      LoadKeys<Layout>(b, k, n, d);
      px::MmaBf16(s[2 * n], a, b[0], b[1]);
      px::MmaBf16(s[2 * n + 1], a, b[2], b[3]);
    }
  }
}

/// Of a row that nobody reads: no tile has to be masked for it.
PX_DEVICE RowRange SeesAll() { return {0, kNoTree, kNoTree, 0}; }
/// Whether the row may look at the token.
PX_DEVICE bool Sees(const RowRange& row, int token) {
  const bool inside = token >= row.first && token <= row.last;
  return token < row.tree_base ? inside : inside && (row.tree >> (token - row.tree_base) & 1u) != 0;
}

/// Scales, caps and masks the scores; after it they are logits · log2(e), −∞ where a row may not look.
template <int kGroups>
PX_DEVICE void ScaleAndMask(float (&s)[kGroups][4], const RowRange (&rows)[2], int first_token, bool hides,
                            float scale_log2, float softcap) {
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
  if (!hides) return;
  PX_UNROLL
  for (int i = 0; i < kGroups; ++i) {
    PX_UNROLL
    for (int j = 0; j < 4; ++j)
      if (!Sees(rows[j >> 1], first_token + i * 8 + (px::Lane() & 3) * 2 + (j & 1))) s[i][j] = kNegativeInfinity;
  }
}

/// px::Lane() in code that hardly ever runs: what is computed from it is not computed, and kept in registers, before
/// the loop around that code.
PX_DEVICE int RarelyUsedLane() { return px::Shuffle(px::Lane(), px::Lane()); }

/// Whether a value of the sub-tile, in kDim columns from 16-byte chunk `first_chunk`, is infinite or NaN; for the warp.
template <int kDim, typename Layout, int kTokens, typename Kv>
PX_DEVICE bool HoldsNonFinite(const Kv* v, int first_chunk) {
  constexpr bool kCodes = sizeof(Kv) == 1;
  // Exponents of ones carry; of e4m3 ones altogether.
  constexpr uint32_t kTested = kCodes ? 0x7F7F7F7Fu : 0x7F807F80u, kOne = kCodes ? 0x01010101u : 0x00800080u,
                     kCarries = kCodes ? 0x80808080u : 0x80008000u;
  constexpr int kChunks = kDim / Layout::kChunk;
  uint32_t found = 0;
  PX_UNROLL_BY(kDim > 128 ? 1 : 4)
  for (int i = RarelyUsedLane(); i < kTokens * kChunks; i += 32) {
    const px::U128 chunk =
        px::LoadShared(reinterpret_cast<const px::U128*>(v + Layout::Offset(i / kChunks, first_chunk + i % kChunks)));
    PX_UNROLL
    for (int w = 0; w < 4; ++w) found |= (chunk.w[w] & kTested) + kOne;
  }
  return px::Ballot((found & kCarries) != 0) != 0;
}

/// Whether some row of the warp may not look at some of the tokens [first_token, first_token + tokens).
PX_DEVICE bool HidesAny(const RowRange (&rows)[2], int first_token, int tokens) {
  const int last_token = first_token + tokens - 1;
  bool partly = false;
  PX_UNROLL
  for (int h = 0; h < 2; ++h)
    partly |= first_token < rows[h].first || last_token > rows[h].last || last_token >= rows[h].tree_base;
  return px::Ballot(partly) != 0;
}

/// One row's turn in AddRowByRow: 16 columns of o, those of group `group` of v.
template <typename Layout, int kGroups, typename Kv>
PX_DEVICE void AddOneRow(float (&o)[2][4], uint32_t (&p)[kGroups / 2][4], int r, const RowRange& row, int first_token,
                         const Kv* v, int group, int lane) {
  PX_UNROLL_BY(1)
  for (int n = 0; n < kGroups / 2; ++n) {
    uint32_t seen[2], b[1][4];
    PX_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int token = first_token + n * 16 + i * 8 + (lane & 3) * 2;  // of this lane's b[i] and b[i + 2]
      seen[i] = (Sees(row, token) ? 0xFFFFu : 0u) | (Sees(row, token + 1) ? 0xFFFF0000u : 0u);
    }
    LoadValues<Layout>(b, v, n, group, lane);
    PX_UNROLL
    for (int i = 0; i < 2; ++i) {
      float sum[4] = {o[i][0], o[i][1], o[i][2], o[i][3]};
      px::MmaBf16(sum, p[0], b[0][2 * i] & seen[0], b[0][2 * i + 1] & seen[1]);
      PX_UNROLL
      for (int j = 0; j < 4; ++j)
        if (lane / 4 + 8 * (j >> 1) == r) o[i][j] = sum[j];
    }
    // The next n's comes first, and at the end the first again: registers cannot be indexed.
    PX_UNROLL
    for (int j = 0; j < 4; ++j) {
      const uint32_t first = p[0][j];
      PX_UNROLL
      for (int i = 0; i + 1 < kGroups / 2; ++i) p[i][j] = p[i + 1][j];
      p[kGroups / 2 - 1][j] = first;
    }
  }
}

/// o += p · v where p is 0 for what a row may not see, but 0 · ∞ would be NaN: each row in turn takes its part of a
/// product in which the values that are hidden from it are 0. The same bits as the plain product where that is finite,
/// in 16 times its time; only for sub-tiles with such a value beside a hidden token.
template <int kDim, typename Layout, int kGroups, typename Kv>
PX_DEVICE void AddRowByRow(TileState<kDim>& state, uint32_t (&p)[kGroups / 2][4], const RowRange (&rows)[2],
                           int first_token, const Kv* v, int first_group) {
  const int lane = RarelyUsedLane();
  PX_UNROLL
  for (int d = 0; d < kDim / 8; d += 2) {
    float o[2][4];
    PX_UNROLL
    for (int j = 0; j < 8; ++j) o[j / 4][j % 4] = state.o[d + j / 4][j % 4];
    PX_UNROLL_BY(1)
    for (int r = 0; r < kRowsPerWarp; ++r) {
      const RowRange held = r < 8 ? rows[0] : rows[1];
      const int holder = (r & 7) * 4;
      const RowRange row{px::Shuffle(held.first, holder), px::Shuffle(held.last, holder),
                         px::Shuffle(held.tree_base, holder), px::Shuffle(held.tree, holder)};
      AddOneRow<Layout, kGroups>(o, p, r, row, first_token, v, first_group + d / 2, lane);
    }
    PX_UNROLL
    for (int j = 0; j < 8; ++j) state.o[d + j / 4][j % 4] = o[j / 4][j % 4];
  }
}

/// Online softmax of one step: scores become weights, rescale(h, alpha) is to bring o of row h to the new maximum.
template <int kDim, int kGroups, typename Rescale>
PX_DEVICE void Softmax(TileState<kDim>& state, float (&s)[kGroups][4], Rescale&& rescale) {
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
    rescale(h, alpha);
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
}

/// Weights as fragments of bf16.
template <int kGroups>
PX_DEVICE void PackWeights(uint32_t (&p)[kGroups / 2][4], const float (&s)[kGroups][4]) {
  PX_UNROLL
  for (int n = 0; n < kGroups / 2; ++n) {
    PX_UNROLL
    for (int j = 0; j < 4; ++j)
      p[n][j] = px::PackBf16(s[2 * n + (j >> 1)][j % 2 * 2], s[2 * n + (j >> 1)][j % 2 * 2 + 1]);
  }
}

/// o += p · v of 16 tokens, 16 · kAtOnce columns of o from group d on, which are v's from group `group` on.
template <typename Layout, int kAtOnce, int kDim, typename Kv>
PX_DEVICE void AddColumns(TileState<kDim>& state, const uint32_t (&p)[4], const Kv* v, int n, int d, int group) {
  uint32_t b[kAtOnce][4];
  LoadValues<Layout>(b, v, n, group, px::Lane());
  PX_UNROLL
  for (int i = 0; i < kAtOnce; ++i) {
    px::MmaBf16(state.o[2 * (d + i)], p, b[i][0], b[i][1]);
    px::MmaBf16(state.o[2 * (d + i) + 1], p, b[i][2], b[i][3]);
  }
}

/// Online softmax of one step into `state`, then o += p · v. v's columns begin at group `first_group`, of 16 each, of
/// rows in `Layout`.
template <int kDim, typename Layout, typename Kv, int kGroups>
PX_DEVICE void Accumulate(TileState<kDim>& state, float (&s)[kGroups][4], const RowRange (&rows)[2], int first_token,
                          bool wounded, const Kv* v, int first_group = 0) {
  uint32_t p[kGroups / 2][4];
  Softmax(state, s, [&](int h, float alpha) { state.Rescale(h, alpha); });
  PackWeights(p, s);
  if (wounded) {
    AddRowByRow<kDim, Layout, kGroups>(state, p, rows, first_token, v, first_group);
    return;
  }
  constexpr int kColumnGroups = kDim / 16, kAtOnce = kValueGroups<Kv>;
  PX_UNROLL
  for (int n = 0; n < kGroups / 2; ++n) {
    PX_UNROLL
    for (int d = 0; d + kAtOnce <= kColumnGroups; d += kAtOnce)
      AddColumns<Layout, kAtOnce>(state, p[n], v, n, d, first_group + d);
    if constexpr (kColumnGroups % kAtOnce != 0)
      AddColumns<Layout, 1>(state, p[n], v, n, kColumnGroups - 1, first_group + kColumnGroups - 1);
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
  constexpr bool kWidens = kWidensKv<Kv, kWarps>;
  using Tile = std::conditional_t<kWidens, px::bf16, Kv>;  // what a warp reads
  using QLayout = TileLayout<px::bf16, kDim>;
  using Layout = TileLayout<Tile, kDim>;
  TileState<kDim> state;
  state.Clear();
  const px::bf16* q = smem.q + px::WarpIndex() * kRowsPerWarp * QLayout::kPitch;
  FetchKv<kDim, kThreads>(smem.stage[first & 1], kv, table, length, head, first * kSubTileTokens);
  px::CpAsyncCommit();
  for (int t = first; t < last; ++t) {
    if (t + 1 < last)
      FetchKv<kDim, kThreads>(smem.stage[(t + 1) & 1], kv, table, length, head, (t + 1) * kSubTileTokens);
    px::CpAsyncCommit();
    // Asked before the barrier: in a vote the emulator's lanes meet, so that one between the barrier and the reads
    // would hide that the barrier is missing.
    const bool hides = HidesAny(rows, t * kSubTileTokens, kSubTileTokens);
    px::CpAsyncWait<1>();
    const Tile *k_tile, *v_tile;
    if constexpr (kWidens) {
      Widen<kDim, kThreads, kSubTileTokens>(smem.wide.k, smem.stage[t & 1].k);
      Widen<kDim, kThreads, kSubTileTokens>(smem.wide.v, smem.stage[t & 1].v);
      k_tile = smem.wide.k;
      v_tile = smem.wide.v;
    } else {
      k_tile = smem.stage[t & 1].k;
      v_tile = smem.stage[t & 1].v;
    }
    SyncBlock<kWarps>();
    constexpr int kStep = kStepTokens<kDim>;
    PX_UNROLL_BY(1)
    for (int done = 0; done < kSubTileTokens; done += kStep) {
      const int first_token = t * kSubTileTokens + done;
      const Tile *k_step = k_tile + done * Layout::kPitch, *v_step = v_tile + done * Layout::kPitch;
      // Asked before the scores take their registers.
      const bool wounded = hides && HoldsNonFinite<kDim, Layout, kStep>(v_step, 0);
      float s[kStep / 8][4];
      Scores<kDim, QLayout, Layout>(s, q, k_step);
      ScaleAndMask(s, rows, first_token, hides, scale_log2, softcap);
      Accumulate<kDim, Layout>(state, s, rows, first_token, wounded, v_step);
    }
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
