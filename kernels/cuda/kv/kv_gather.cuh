// Packs runs of the paged cache into a landing slot's payload and derives their digests on the way: the sender's pass.
//
// Floor per token and head of b bytes: read b, write b; digests read 8 bytes per 16 tokens; no FLOP. A 400 Gbit/s link
// needs 50 GB/s, 1.2 % of the memory's 4.3 TB/s. One block per run, one warp per (unit, head), four 16-byte loads in
// flight per lane.
#pragma once

#include "kernels/cuda/kv/kv_run.cuh"

namespace baton::cuda {

/// sums[segment] is the source digest of what was read; bad[segment] counts the pieces whose bytes are not those that
/// the kept digest says were computed (an evicted or reused source).
PX_KERNEL_INLINE void PX_BOUNDS(kKvRunThreads) GatherKvKernel(const PX_GRID_CONST KvRunsParams p) {
  px::GridDependencyWait();
  const KvRun run = p.runs[px::BlockX()];
  const int pieces = KvPieces(run), chunks = p.vector_bytes / 16;
  for (int n = px::WarpIndex(); n < pieces; n += kKvRunWarps) {
    const KvPiece piece = KvPieceAt(run, n);
    const unsigned char* from =
        run.cache + piece.first * run.token_stride + static_cast<int64_t>(piece.head) * p.vector_bytes;
    unsigned char* to =
        p.packed + run.packed_offset + (static_cast<int64_t>(piece.first) * run.heads + piece.head) * p.vector_bytes;
    uint64_t digest = 0;
    ForEachChunk(
        piece, chunks, [&](int token) { return from + token * run.token_stride; },
        [&](int token, int c, const px::U128& v) {
          px::Store(reinterpret_cast<px::U128*>(to + static_cast<int64_t>(token) * run.heads * p.vector_bytes) + c, v);
          const uint64_t key = KvKeyOf(run, piece, token);
          digest += KvMixOf(key, 2 * c, v.w[0], v.w[1]) + KvMixOf(key, 2 * c + 1, v.w[2], v.w[3]);
        });
    digest = WarpSum64(digest);
    if (px::Lane() != 0) continue;
    px::AtomicAdd(p.sums + run.segment, digest);
    if (piece.kept != nullptr && px::Load(piece.kept) != digest) px::AtomicAdd(p.bad + run.segment, 1);
  }
  px::GridDependencyRelease();
}

inline void LaunchGatherKv(gpu::Stream& stream, const KvRunsParams& p) {
  if (p.count == 0) return;
  gpu::Launch(stream, KvRunsLaunch(p.count), &GatherKvKernel, p);
}

}  // namespace baton::cuda
