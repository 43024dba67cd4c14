// KV between the paged cache and packed segments: gather at the sender (digest derived again), verify + scatter at the
// receiver. Copying changes nothing but the place; resharding heads is the choice of pieces. bf16 → e4m3 converts.
//
// Floor per piece of t tokens and b bytes per token: read t·b, write t·b; digests add 8 bytes per 16 tokens. A PCIe 5
// link needs 55 GB/s: 8 warps per SM on a few SMs. One block per (piece); a piece is ≤ 16 tokens of one head and plane.
#pragma once

#include "common/kv_digest.h"
#include "kernels/cuda/warp.cuh"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

/// One digest unit: ≤ 16 tokens of one (layer, plane, head) that lie in one block.
struct KvPiece {
  int64_t cache_offset;    ///< bytes from the pool's base to the first token's vector
  int64_t packed_offset;   ///< bytes from the segment's base; tokens follow each other
  int64_t token_stride;    ///< bytes between tokens in the cache
  uint32_t layer, plane, head, first_token;  ///< the digest's coordinates, global numbers
  int32_t tokens;
  int32_t reserved = 0;
  uint64_t digest;         ///< scatter: what the sender says
  int64_t digest_index;    ///< where the unit's digest is kept in the cache's digest array; −1: not kept
};

struct KvSegmentsParams {
  unsigned char* cache;     ///< pool base
  unsigned char* packed;    ///< segment base
  const KvPiece* pieces;    ///< [count]
  uint64_t* digests;        ///< gather: [count] of what was read. Scatter: the cache's digests, written for good pieces
  int32_t* bad;             ///< scatter: number of pieces whose bytes do not match; zeroed by the caller
  int count;
  int vector_bytes;         ///< bytes of one token's head vector in the packed segment, a multiple of 16
};

constexpr int kSegmentThreads = 128;
constexpr int kSegmentWarps = kSegmentThreads / 32;

struct SegmentShared {
  uint64_t partial[kSegmentWarps];
};

/// Sum over the block of one 64-bit value per thread.
PX_DEVICE uint64_t BlockSum64(uint64_t v, SegmentShared& smem) {
  PX_UNROLL
  for (int m = 16; m > 0; m /= 2) {
    const uint32_t low = px::ShuffleXor(static_cast<uint32_t>(v), m), high = px::ShuffleXor(static_cast<uint32_t>(v >> 32), m);
    v += static_cast<uint64_t>(high) << 32 | low;
  }
  if (px::Lane() == 0) px::StoreShared(&smem.partial[px::WarpIndex()], v);
  px::SyncThreads();
  uint64_t sum = 0;
  PX_UNROLL
  for (int w = 0; w < kSegmentWarps; ++w) sum += px::LoadShared(&smem.partial[w]);
  return sum;
}

/// Digest of 16 bytes that are words `word` and `word + 1` of a token's vector.
PX_DEVICE uint64_t DigestOf(const px::U128& v, const KvPiece& piece, int token, int word) {
  const uint64_t key = KvDigestKey({piece.layer, piece.plane, piece.head, piece.first_token + static_cast<uint32_t>(token)});
  return KvDigestMix(key, static_cast<uint32_t>(word), static_cast<uint64_t>(v.w[1]) << 32 | v.w[0]) +
         KvDigestMix(key, static_cast<uint32_t>(word) + 1, static_cast<uint64_t>(v.w[3]) << 32 | v.w[2]);
}

PX_KERNEL_INLINE void PX_BOUNDS(kSegmentThreads) GatherSegmentsKernel(const PX_GRID_CONST KvSegmentsParams p) {
  PX_SHARED(SegmentShared, smem);
  px::GridDependencyWait();
  const KvPiece piece = p.pieces[px::BlockX()];
  const int vectors = p.vector_bytes / 16;
  uint64_t digest = 0;
  for (int i = px::ThreadX(); i < piece.tokens * vectors; i += kSegmentThreads) {
    const int token = i / vectors, c = i % vectors;
    const px::U128 v = px::LoadStream(reinterpret_cast<const px::U128*>(p.cache + piece.cache_offset + token * piece.token_stride + c * 16));
    px::Store(reinterpret_cast<px::U128*>(p.packed + piece.packed_offset + static_cast<int64_t>(i) * 16), v);
    digest += DigestOf(v, piece, token, 2 * c);
  }
  const uint64_t sum = BlockSum64(digest, smem);
  if (px::ThreadX() == 0) px::Store(p.digests + px::BlockX(), sum);
  px::GridDependencyRelease();
}

/// Verifies first, then writes: a piece whose digest differs leaves the cache untouched and is counted. Two passes over
/// ≤ 16 · 1 KiB: the second comes from L2. kNarrow: bf16 in the segment, e4m3 · scale in the cache.
template <bool kNarrow>
PX_KERNEL void PX_BOUNDS(kSegmentThreads) ScatterSegmentsKernel(const PX_GRID_CONST KvSegmentsParams p, float inverse_scale) {
  PX_SHARED(SegmentShared, smem);
  px::GridDependencyWait();
  const KvPiece piece = p.pieces[px::BlockX()];
  const int vectors = p.vector_bytes / 16;
  const auto* packed = reinterpret_cast<const px::U128*>(p.packed + piece.packed_offset);
  uint64_t digest = 0;
  for (int i = px::ThreadX(); i < piece.tokens * vectors; i += kSegmentThreads)
    digest += DigestOf(px::Load(packed + i), piece, i / vectors, i % vectors * 2);
  const bool good = BlockSum64(digest, smem) == piece.digest;
  uint64_t stored = 0;
  for (int i = px::ThreadX(); good && i < piece.tokens * vectors; i += kSegmentThreads) {
    const int token = i / vectors, c = i % vectors;
    unsigned char* out = p.cache + piece.cache_offset + token * piece.token_stride;
    const px::U128 v = px::Load(packed + i);
    if constexpr (kNarrow) {
      uint16_t narrow[4];
      PX_UNROLL
      for (int w = 0; w < 4; ++w) {
        const px::F2 pair = px::UnpackBf16(v.w[w]);
        narrow[w] = px::PackE4m3(px::Mul(pair.x, inverse_scale), px::Mul(pair.y, inverse_scale));
      }
      const px::U64 word{narrow[0] | static_cast<uint32_t>(narrow[1]) << 16, narrow[2] | static_cast<uint32_t>(narrow[3]) << 16};
      px::Store(reinterpret_cast<px::U64*>(out + c * 8), word);
      const uint64_t key = KvDigestKey({piece.layer, piece.plane, piece.head, piece.first_token + static_cast<uint32_t>(token)});
      stored += KvDigestMix(key, static_cast<uint32_t>(c), static_cast<uint64_t>(word.w[1]) << 32 | word.w[0]);
    } else {
      px::Store(reinterpret_cast<px::U128*>(out + c * 16), v);
    }
  }
  if constexpr (kNarrow) {
    px::SyncThreads();  // the partial sums of the verification have been read
    stored = BlockSum64(stored, smem);
  } else {
    stored = piece.digest;
  }
  if (px::ThreadX() == 0) {
    if (!good) px::AtomicAdd(p.bad, 1);
    else if (piece.digest_index >= 0) px::Store(p.digests + piece.digest_index, stored);
  }
  px::GridDependencyRelease();
}

inline void LaunchGatherSegments(gpu::Stream& stream, const KvSegmentsParams& p) {
  if (p.count == 0) return;
  gpu::Launch(stream, {.grid = {static_cast<unsigned>(p.count)}, .block = {kSegmentThreads}, .shared_bytes = sizeof(SegmentShared)},
              &GatherSegmentsKernel, p);
}
/// scale 0: same dtype on both sides; else bf16 → e4m3 with value = stored · scale.
inline void LaunchScatterSegments(gpu::Stream& stream, const KvSegmentsParams& p, float scale) {
  if (p.count == 0) return;
  const gpu::LaunchConfig config{.grid = {static_cast<unsigned>(p.count)}, .block = {kSegmentThreads}, .shared_bytes = sizeof(SegmentShared)};
  if (scale > 0) gpu::Launch(stream, config, &ScatterSegmentsKernel<true>, p, 1.0f / scale);
  else gpu::Launch(stream, config, &ScatterSegmentsKernel<false>, p, 1.0f);
}

}  // namespace baton::cuda
