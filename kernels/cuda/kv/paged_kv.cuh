// The paged KV cache as attention reads it: block by block into shared memory, 64 tokens at a time.
#pragma once

#include <type_traits>

#include "common/check.h"
#include "kernels/cuda/tile_layout.cuh"

namespace baton::cuda {

constexpr int kSubTileTokens = 64;

/// Tokens of a block, and what divides by them.
struct BlockSize {
  int tokens;
  uint32_t reciprocal;
  /// Exact for token < 2³² / tokens.
  PX_DEVICE int BlockOf(int token) const {
    return static_cast<int>(px::MulHigh(static_cast<uint32_t>(token), reciprocal));
  }
};
constexpr int kMaxBlockTokens = 1024;  ///< contexts up to 4M tokens
inline BlockSize MakeBlockSize(int tokens) {
  BATON_CHECK(tokens % 16 == 0 && tokens > 0 && tokens <= kMaxBlockTokens, "blocks of ", tokens,
              " tokens: a multiple of 16 up to ", kMaxBlockTokens, " is needed");
  return {tokens, 0xFFFFFFFFu / static_cast<uint32_t>(tokens) + 1};
}

/// A paged cache as attention sees it. The head strides are 0 for ordinary caches; with per-head block tables
/// (KV-Compress) every (sequence, head) has its own table and length, and tokens have no common position.
template <typename Kv>
struct PagedKv {
  const Kv* k;  ///< block b at k + b · block_stride: [tokens_per_block, kv_heads, head_dim]
  const Kv* v;
  int64_t block_stride;   ///< elements
  const int32_t* tables;  ///< [sequences, table_stride] (+ head · table_head_stride)
  int64_t table_stride, table_head_stride;
  const int32_t*
      lengths;  ///< [sequences · (kv_heads if length_head_stride)]: tokens in the cache, this step's included
  int length_stride, length_head_stride;
  BlockSize block_size;
  int kv_heads;
  const float* k_scale;  ///< [kv_heads], e4m3 only: value = stored · scale
  const float* v_scale;
};

/// How copied rows of the cache lie in shared memory: to be widened there, or as a warp reads them for mma.
template <typename Kv, int kDim, bool kWidened = sizeof(Kv) == 1>
using StageLayout = std::conditional_t<kWidened, DenseLayout<Kv, kDim>, TileLayout<Kv, kDim>>;

template <typename Kv, typename Rows>
struct KvStage {
  using Layout = Rows;
  Kv k[kSubTileTokens * Layout::kPitch];
  Kv v[kSubTileTokens * Layout::kPitch];
};
template <int kDim, bool kUsed>
struct WideStage : KvStage<px::bf16, TileLayout<px::bf16, kDim>> {};
template <int kDim>
struct WideStage<kDim, false> {};

/// Tokens from a multiple of so many on lie in one block, whatever its size.
constexpr int kRunTokens = 16;
/// A warp alone copies run by run; four warps, whose turns hide the table's reads, chunk by chunk: the code is smaller
/// (a prompt of 8,192 tokens on an H100 took 4 % longer run by run, 16,384 tokens behind 8 decodes 7 % less). sm_100's
/// code has no registers left for runs.
template <int kThreads>
constexpr bool kCopiesByRun = PX_SM100_OR(false, kThreads == 32);

/// FetchKv for a warp: the table is read once for a run, for all runs before the copies that wait for it.
template <int kDim, typename Kv, typename Layout>
PX_DEVICE void FetchKvByRun(KvStage<Kv, Layout>& stage, const PagedKv<Kv>& kv, const int32_t* table, int length,
                            int head, int first) {
  constexpr int kRuns = kSubTileTokens / kRunTokens, kAtOnce = kDim > 128 ? 1 : kRuns;  // at 256 o has the registers
  PX_UNROLL_BY(1)
  for (int done = 0; done < kRuns; done += kAtOnce) {
    int64_t from[kAtOnce];
    PX_UNROLL
    for (int r = 0; r < kAtOnce; ++r) {
      const int token = first + (done + r) * kRunTokens, entry = kv.block_size.BlockOf(token);
      const int block = token < length ? px::Load(table + entry) : 0;
      from[r] = block * kv.block_stride +
                (static_cast<int64_t>(token - entry * kv.block_size.tokens) * kv.kv_heads + head) * kDim;
    }
    PX_UNROLL
    for (int r = 0; r < kAtOnce; ++r) {
      PX_UNROLL_BY(kDim > 128 ? 1 : 4)
      for (int i = px::Lane(); i < kRunTokens * Layout::kChunks; i += 32) {
        const int row = i / Layout::kChunks, chunk = i % Layout::kChunks, to = (done + r) * kRunTokens + row;
        const bool valid = first + to < length;
        const int64_t at = valid ? from[r] + row * kv.kv_heads * kDim + chunk * Layout::kChunk : 0;
        px::CpAsync16(stage.k + Layout::Offset(to, chunk), kv.k + at, valid);
        px::CpAsync16(stage.v + Layout::Offset(to, chunk), kv.v + at, valid);
      }
    }
  }
}

/// Starts the copies of tokens [first, first + 64) of one kv head; tokens ≥ length become zero, whatever lies there.
template <int kDim, int kThreads, typename Kv, typename Layout>
PX_DEVICE void FetchKv(KvStage<Kv, Layout>& stage, const PagedKv<Kv>& kv, const int32_t* table, int length, int head,
                       int first) {
  if constexpr (kCopiesByRun<kThreads>) {
    FetchKvByRun<kDim>(stage, kv, table, length, head, first);
  } else {
    PX_UNROLL_BY(kDim > 128 ? 1 : 4)
    for (int i = px::ThreadX(); i < kSubTileTokens * Layout::kChunks; i += kThreads) {
      const int row = i / Layout::kChunks, chunk = i % Layout::kChunks, token = first + row;
      const bool valid = token < length;
      const int entry = kv.block_size.BlockOf(token), block = valid ? px::Load(table + entry) : 0;
      const int in_block = token - entry * kv.block_size.tokens;
      const int64_t at = valid
                             ? block * kv.block_stride + (static_cast<int64_t>(in_block) * kv.kv_heads + head) * kDim +
                                   chunk * Layout::kChunk
                             : 0;
      px::CpAsync16(stage.k + Layout::Offset(row, chunk), kv.k + at, valid);
      px::CpAsync16(stage.v + Layout::Offset(row, chunk), kv.v + at, valid);
    }
  }
}

/// e4m3 → bf16 (exact), all threads of the block: thread t has 16-byte chunks t, t + kThreads, … of rows in a row,
/// those that it copied itself.
template <int kDim, int kThreads, int kTokens>
PX_DEVICE void Widen(px::bf16* out, const px::e4m3* in) {
  constexpr bool kTurns = PX_SM100_OR(kDim != 256, true);  // at 256 sm_100's code has no register left for it
  using From = StageLayout<px::e4m3, kDim>;
  using To = TileLayout<px::bf16, kDim>;
  PX_UNROLL_BY(kDim > 128 ? 1 : 4)  // at 256, o alone takes half of the registers
  for (int i = px::ThreadX(); i < kTokens * From::kChunks; i += kThreads) {
    const int row = i / From::kChunks, chunk = i % From::kChunks;
    const px::U128 raw = px::LoadShared(reinterpret_cast<const px::U128*>(in + From::Offset(row, chunk)));
    // Eight threads write at a time: half of them their second chunk first, so that they write to different banks.
    const int first = kTurns ? (i / 4 ^ row) & 1 : 0;
    PX_UNROLL
    for (int turn = 0; turn < 2; ++turn) {
      const int half = turn ^ first;
      const uint32_t from[2] = {half == 0 ? raw.w[0] : raw.w[2], half == 0 ? raw.w[1] : raw.w[3]};
      px::U128 wide;
      PX_UNROLL
      for (int w = 0; w < 4; ++w) wide.w[w] = px::E4m3ToBf16(static_cast<uint16_t>(from[w / 2] >> (w % 2 * 16)));
      px::StoreShared(reinterpret_cast<px::U128*>(out + To::Offset(row, 2 * chunk + half)), wide);
    }
  }
}

}  // namespace baton::cuda
