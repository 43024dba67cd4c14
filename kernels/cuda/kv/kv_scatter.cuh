// The receiver's pass over a landing slot: digest of what arrived, conversion to the cache's type, resharding and
// placing, and the digests of what was stored. Resharding is the choice of runs.
//
// Every byte is read once: what the digest covers is what was stored, so placing does not wait for the verdict. The
// loads go through the read-only cache: nobody may write the slot meanwhile, which a copy of it is (host/kv_mover.h). The caller compares sums[segment] with what the sender said; a segment that
// differs leaves garbage in blocks which nobody may read before their ticket is ready, and which its repetition
// overwrites, digests included.
// Floor per token and head: read b bytes of the slot, write the cache's, 8 bytes of digest per 16 tokens; 1 FLOP per
// element that is scaled. 40k tokens/s of 128 KiB: 5.2 GB/s in and out, 0.25 % of 4.3 TB/s. One block per run, one warp
// per (unit, head).
#pragma once

#include <type_traits>

#include "kernels/cuda/kv/kv_run.cuh"

namespace baton::cuda {

/// From the slot's element type to the cache's. Where one of them is e4m3, its values are stored · KvRun::scale.
enum class KvConversion : uint8_t { kNone, kF32ToBf16, kF16ToBf16, kBf16ToE4m3, kF32ToE4m3, kF16ToE4m3, kE4m3ToBf16 };

PX_DEVICE uint32_t PackE4m3Quad(float a, float b, float c, float d, float inverse_scale) {
  return PackE4m3Four(px::Mul(a, inverse_scale), px::Mul(b, inverse_scale), px::Mul(c, inverse_scale),
                      px::Mul(d, inverse_scale));
}

/// Two chunks of f32 make one word of e4m3. Returns what the word adds to the stored digest.
PX_DEVICE uint64_t StoreF32AsE4m3(unsigned char* vector, int pair, const px::U128& low, const px::U128& high,
                                  uint64_t key, float inverse_scale) {
  auto quad = [&](const px::U128& v) {
    return PackE4m3Quad(px::BitCast<float>(v.w[0]), px::BitCast<float>(v.w[1]), px::BitCast<float>(v.w[2]),
                        px::BitCast<float>(v.w[3]), inverse_scale);
  };
  const px::U64 out{quad(low), quad(high)};
  px::Store(reinterpret_cast<px::U64*>(vector) + pair, out);
  return KvMixOf(key, pair, out.w[0], out.w[1]);
}

/// 16 e4m3 make two chunks of bf16.
PX_DEVICE uint64_t StoreE4m3AsBf16(unsigned char* vector, int c, const px::U128& v, uint64_t key, float scale) {
  uint64_t sum = 0;
  PX_UNROLL
  for (int half = 0; half < 2; ++half) {
    px::U128 out;
    PX_UNROLL
    for (int w = 0; w < 4; ++w) {
      const px::F2 pair = px::UnpackE4m3(static_cast<uint16_t>(v.w[2 * half + w / 2] >> (w % 2 * 16)));
      out.w[w] = px::PackBf16(px::Mul(pair.x, scale), px::Mul(pair.y, scale));
    }
    px::Store(reinterpret_cast<px::U128*>(vector) + 2 * c + half, out);
    sum += KvMixOf(key, 4 * c + 2 * half, out.w[0], out.w[1]) + KvMixOf(key, 4 * c + 2 * half + 1, out.w[2], out.w[3]);
  }
  return sum;
}

/// `factor`: what values are multiplied with, the scale of a source in e4m3 or the inverse of a cache's.
template <KvConversion kConversion>
PX_DEVICE uint64_t StoreConverted(unsigned char* vector, int c, const px::U128& v, uint64_t key, float factor) {
  if constexpr (kConversion == KvConversion::kE4m3ToBf16) {
    return StoreE4m3AsBf16(vector, c, v, key, factor);
  } else if constexpr (kConversion == KvConversion::kF16ToBf16) {
    px::U128 out;
    PX_UNROLL
    for (int w = 0; w < 4; ++w) {
      const px::F2 pair = UnpackPair<px::f16>(v.w[w]);
      out.w[w] = px::PackBf16(pair.x, pair.y);
    }
    px::Store(reinterpret_cast<px::U128*>(vector) + c, out);
    return KvMixOf(key, 2 * c, out.w[0], out.w[1]) + KvMixOf(key, 2 * c + 1, out.w[2], out.w[3]);
  } else {
    px::U64 out;
    if constexpr (kConversion == KvConversion::kF32ToBf16) {
      PX_UNROLL
      for (int w = 0; w < 2; ++w)
        out.w[w] = px::PackBf16(px::BitCast<float>(v.w[2 * w]), px::BitCast<float>(v.w[2 * w + 1]));
    } else {
      using From = std::conditional_t<kConversion == KvConversion::kF16ToE4m3, px::f16, px::bf16>;
      PX_UNROLL
      for (int w = 0; w < 2; ++w) {
        const px::F2 low = UnpackPair<From>(v.w[2 * w]), high = UnpackPair<From>(v.w[2 * w + 1]);
        out.w[w] = PackE4m3Quad(low.x, low.y, high.x, high.y, factor);
      }
    }
    px::Store(reinterpret_cast<px::U64*>(vector) + c, out);
    return KvMixOf(key, c, out.w[0], out.w[1]);
  }
}

template <KvConversion kConversion>
PX_KERNEL void PX_BOUNDS(kKvRunThreads, kKvRunBlocksPerSm) ScatterKvKernel(const PX_GRID_CONST KvRunsParams p) {
  px::GridDependencyWait();
  const KvRun run = p.runs[px::BlockX()];
  const int pieces = KvPieces(run), chunks = p.vector_bytes / 16;
  constexpr bool kQuarters = kConversion == KvConversion::kF32ToE4m3,
                 kDoubles = kConversion == KvConversion::kE4m3ToBf16;
  constexpr bool kPairsToE4m3 = kConversion == KvConversion::kBf16ToE4m3 || kConversion == KvConversion::kF16ToE4m3;
  constexpr bool kHalves = kConversion == KvConversion::kF32ToBf16 || kPairsToE4m3;
  constexpr bool kToE4m3 = kQuarters || kPairsToE4m3;
  const int stored_bytes = p.vector_bytes * (kDoubles ? 2 : 1) / (kQuarters ? 4 : kHalves ? 2 : 1);
  const float factor = kToE4m3 ? 1.0f / run.scale : run.scale;
  for (int n = px::WarpIndex(); n < pieces; n += kKvRunWarps) {
    const KvPiece piece = KvPieceAt(run, n);
    const unsigned char* from =
        p.packed + run.packed_offset + (static_cast<int64_t>(piece.first) * run.heads + piece.head) * p.vector_bytes;
    unsigned char* to = run.cache + piece.first * run.token_stride + static_cast<int64_t>(piece.head) * stored_bytes;
    uint64_t arrived = 0, stored = 0;
    // Without the hardware's conversion (sm_80) two e4m3 in flight are what registers allow.
    ForEachChunk<kToE4m3 ? 2 : 4, kQuarters ? 2 : 1>(
        piece, kQuarters ? chunks / 2 : chunks,
        [&](int token) { return from + static_cast<int64_t>(token) * run.heads * p.vector_bytes; },
        [&](int token, int c, const px::U128& v) {
          const uint64_t key = KvKeyOf(run, piece, token);
          if constexpr (kQuarters) {
            const px::U128 next = px::LoadStream(
                reinterpret_cast<const px::U128*>(from + static_cast<int64_t>(token) * run.heads * p.vector_bytes) +
                2 * c + 1);
            arrived += KvMixOf(key, 4 * c, v.w[0], v.w[1]) + KvMixOf(key, 4 * c + 1, v.w[2], v.w[3]) +
                       KvMixOf(key, 4 * c + 2, next.w[0], next.w[1]) + KvMixOf(key, 4 * c + 3, next.w[2], next.w[3]);
            stored += StoreF32AsE4m3(to + token * run.token_stride, c, v, next, key, factor);
            return;
          }
          arrived += KvMixOf(key, 2 * c, v.w[0], v.w[1]) + KvMixOf(key, 2 * c + 1, v.w[2], v.w[3]);
          unsigned char* vector = to + token * run.token_stride;
          if constexpr (kConversion == KvConversion::kNone)
            px::Store(reinterpret_cast<px::U128*>(vector) + c, v);
          else if constexpr (!kQuarters)
            stored += StoreConverted<kConversion>(vector, c, v, key, factor);
        });
    arrived = WarpSum64(arrived);
    stored = kConversion == KvConversion::kNone ? arrived : WarpSum64(stored);
    if (px::Lane() != 0) continue;
    px::AtomicAdd(p.sums + run.segment, arrived);
    if (piece.kept != nullptr) px::Store(piece.kept, piece.begins_unit ? stored : px::Load(piece.kept) + stored);
  }
  px::GridDependencyRelease();
}

template <KvConversion kConversion>
void LaunchScatterKv(gpu::Stream& stream, const KvRunsParams& p) {
  if (p.count == 0) return;
  gpu::Launch(stream, KvRunsLaunch(p.count), &ScatterKvKernel<kConversion>, p);
}

}  // namespace baton::cuda
