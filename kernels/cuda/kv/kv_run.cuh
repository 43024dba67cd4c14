// What gather and scatter of KV have in common: the runs they walk and the digest of what they move.
//
// A run is consecutive tokens inside one block times the heads that travel, of one (layer, plane); in a landing slot
// its vectors lie packed, [tokens, heads, dim]. The digest is that of common/kv_digest.h, so device and host sides of a
// handoff agree. One warp moves one (16-token unit, head) of a run: that is what a kept digest covers.
#pragma once

#include "common/kv_digest.h"
#include "kernels/cuda/warp.cuh"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

struct KvRun {
  unsigned char* cache;      ///< the first token's vector of the first head that travels
  int64_t token_stride;      ///< bytes between tokens in the cache; heads follow each other
  int64_t packed_offset;     ///< bytes from the slot's base, a multiple of 16
  uint64_t* kept;            ///< digest of the first unit's first head beside the block, or null: none kept
  int64_t kept_unit_stride;  ///< elements between units; heads follow each other
  uint32_t layer, plane, first_head, first_token;  ///< global numbers: the digest's coordinates
  int32_t tokens, heads;
  int32_t segment;  ///< which of the launch's `sums` it belongs to
  float scale;      ///< where slot or cache is e4m3: value = stored · scale
};

struct KvRunsParams {
  unsigned char* packed;  ///< the slot
  const KvRun* runs;      ///< [count]
  uint64_t* sums;         ///< [segments] digests of the packed bytes are added; zeroed by the caller
  int32_t* bad;  ///< gather: [segments] pieces that differ from their kept digest are counted; zeroed by the caller
  int count;
  int vector_bytes;  ///< of one token and head in the slot, a multiple of 16
};

constexpr int kKvRunThreads = 128;
constexpr int kKvRunWarps = kKvRunThreads / 32;
constexpr int kKvRunBlocksPerSm = 4;  ///< at least: up to 128 registers
constexpr int kKvUnitTokens = 16;

/// One warp's share of a run.
struct KvPiece {
  int head, first, tokens;  ///< head of the run; tokens of the run
  uint64_t* kept;           ///< or null
  bool begins_unit;         ///< its first token is the unit's first
};

PX_DEVICE int KvPieces(const KvRun& run) {
  const int skew = static_cast<int>(run.first_token % kKvUnitTokens);
  return (skew + run.tokens + kKvUnitTokens - 1) / kKvUnitTokens * run.heads;
}
PX_DEVICE KvPiece KvPieceAt(const KvRun& run, int n) {
  const int skew = static_cast<int>(run.first_token % kKvUnitTokens);
  const int unit = n / run.heads, head = n % run.heads, end = (unit + 1) * kKvUnitTokens - skew;
  const int first = unit == 0 ? 0 : end - kKvUnitTokens;
  return {head, first, (end < run.tokens ? end : run.tokens) - first,
          run.kept != nullptr ? run.kept + unit * run.kept_unit_stride + head : nullptr, unit > 0 || skew == 0};
}
PX_DEVICE uint64_t KvKeyOf(const KvRun& run, const KvPiece& piece, int token) {
  return KvDigestKey({run.layer, run.plane, run.first_head + static_cast<uint32_t>(piece.head),
                      run.first_token + static_cast<uint32_t>(piece.first + token)});
}
/// Digest of 8 bytes that are word `word` of a vector.
PX_DEVICE uint64_t KvMixOf(uint64_t key, int word, uint32_t low, uint32_t high) {
  return KvDigestMix(key, static_cast<uint32_t>(word), static_cast<uint64_t>(high) << 32 | low);
}

/// visit(token, chunk, bytes) for every 16 bytes of the piece that this lane loads, kAhead loads in flight.
/// from(token) is the address of a token's vector. kStep 2: only even chunks; `chunks` counts them.
template <int kAhead = 4, int kStep = 1, typename From, typename Visit>
PX_DEVICE void ForEachChunk(const KvPiece& piece, int chunks, From&& from, Visit&& visit) {
  const int n = piece.tokens * chunks;
  for (int base = px::Lane(); base < n; base += 32 * kAhead) {
    px::U128 v[kAhead];
    PX_UNROLL
    for (int j = 0; j < kAhead; ++j)
      if (const int i = base + 32 * j; i < n)
        v[j] = px::LoadStream(reinterpret_cast<const px::U128*>(from(i / chunks)) + i % chunks * kStep);
    PX_UNROLL
    for (int j = 0; j < kAhead; ++j)
      if (const int i = base + 32 * j; i < n) visit(i / chunks, i % chunks, v[j]);
  }
}

inline gpu::LaunchConfig KvRunsLaunch(int count) {
  return {.grid = {static_cast<unsigned>(count)}, .block = {kKvRunThreads}};
}

}  // namespace baton::cuda
