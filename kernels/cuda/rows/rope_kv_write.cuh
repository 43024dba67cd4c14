// From the fused QKV row to attention's inputs in one pass: per head optional RMSNorm of q and k, RoPE, q to its
// tensor, k and v to the row's slot in the paged cache (bf16 or e4m3 with per-head scales), digests added per 16-token
// unit.
//
// Floor per token, Hq q heads, Hk kv heads of d (bf16): read 2d(Hq + 2Hk), write the same: 32/8 heads of 128: 24.6 kB.
// 16,384 tokens: 94 µs at 4.3 TB/s. FLOP negligible. One warp per (token, head); a head's 2d bytes are one request.
#pragma once

#include "common/kv_digest.h"
#include "kernels/cuda/warp.cuh"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

template <typename Kv>
struct RopeKvParams {
  const px::bf16* q;  ///< [rows, q_heads, head_dim]
  const px::bf16* k;  ///< [rows, kv_heads, head_dim]
  const px::bf16* v;
  int64_t q_stride, k_stride, v_stride;  ///< q, k and v may be parts of one fused row
  px::bf16* q_out;                       ///< [rows, q_heads, head_dim], may be q
  int64_t q_out_stride;
  const float* q_norm;  ///< [head_dim] or null
  const float* k_norm;  ///< [head_dim] or null
  const float*
      cos_sin;  ///< [positions, rotary_dim]: rotary_dim / 2 cosines, then the sines, in f32, attention factor applied
  const int32_t* positions;  ///< [rows]
  const int32_t* slots;      ///< [rows] block · tokens_per_block + offset, negative: padding row, writes nothing
  Kv* k_base;                ///< block b at k_base + b · block_stride: [tokens_per_block, kv_heads, head_dim]
  Kv* v_base;
  int64_t block_stride;  ///< elements
  const float* k_scale;  ///< [kv_heads] stored = value / scale; read for e4m3 only
  const float* v_scale;
  uint64_t* k_digests;  ///< [blocks, tokens_per_block / 16, kv_heads], added to; null: none
  uint64_t* v_digests;
  int64_t digest_block_stride;
  int rows, q_heads, kv_heads, rotary_dim, tokens_per_block;
  uint32_t layer, first_head;  ///< digest key
  float norm_eps, norm_offset;
  bool apart = false;  ///< no two rows are of one unit: the first token of a unit begins its digest
};

constexpr int kRopeThreads = 128;
constexpr int kRopeWarps = kRopeThreads / 32;
constexpr int kDigestUnitTokens = 16;

/// Digest of one head's vector of which lane l holds elements l, l + 32, …: neighbouring lanes build 8-byte words.
template <typename Kv, int kDim>
PX_DEVICE uint64_t WarpDigest(const KvCoordinate& where, const Kv (&stored)[(kDim + 31) / 32]) {
  constexpr int kPerWord = 8 / static_cast<int>(sizeof(Kv)), kBits = 8 * static_cast<int>(sizeof(Kv));
  const uint64_t key = KvDigestKey(where);
  uint64_t sum = 0;
  PX_UNROLL
  for (int j = 0; j < (kDim + 31) / 32; ++j) {
    uint32_t low = stored[j].bits;
    PX_UNROLL
    for (int width = 1; width * kBits < 32; width *= 2) low |= px::ShuffleXor(low, width) << (width * kBits);
    const uint32_t high = px::ShuffleXor(low, kPerWord / 2);
    const int e = j * 32 + px::Lane();
    if (e % kPerWord == 0 && e < kDim)
      sum += KvDigestMix(key, static_cast<uint32_t>(e / kPerWord), static_cast<uint64_t>(high) << 32 | low);
  }
  return WarpSum64(sum);
}

/// A head's vector over a warp: lane l holds elements l, l + 32, …, so that every access is one run of 64 bytes.
template <int kDim>
struct HeadVector {
  static constexpr int kPerLane = (kDim + 31) / 32;
  float v[kPerLane];

  PX_DEVICE void Load(const px::bf16* in) {
    PX_UNROLL
    for (int j = 0; j < kPerLane; ++j) {
      const int e = j * 32 + px::Lane();
      v[j] = e < kDim ? px::ToFloat(px::Load(in + e)) : 0.0f;
    }
  }
  /// v ← v / rms(v) · (weight + offset).
  PX_DEVICE void Normalize(const float* weight, float offset, float eps) {
    float squares = 0.0f;
    PX_UNROLL
    for (int j = 0; j < kPerLane; ++j) squares = px::Fma(v[j], v[j], squares);
    const float scale = px::Rsqrt(px::Mul(WarpSum(squares), 1.0f / kDim) + eps);
    PX_UNROLL
    for (int j = 0; j < kPerLane; ++j) {
      const int e = j * 32 + px::Lane();
      if (e < kDim) v[j] = px::Mul(px::Mul(v[j], scale), px::Load(weight + e) + offset);
    }
  }
  /// Pairs (i, i + rotary_dim / 2) turn by the angle whose cosines, then sines, are in `cos_sin`.
  PX_DEVICE void Rotate(const float* cos_sin, int rotary_dim) {
    const int half = rotary_dim / 2;
    float rotated[kPerLane];
    PX_UNROLL
    for (int j = 0; j < kPerLane; ++j) {
      const int e = j * 32 + px::Lane();
      const int partner = e < half ? e + half : e - half;
      // The partner's value: its lane is fixed per j when half is a multiple of 32, else found by scanning the
      // registers.
      float other = 0.0f;
      PX_UNROLL
      for (int k = 0; k < kPerLane; ++k) {
        const float candidate = px::Shuffle(v[k], partner & 31);
        if (partner >> 5 == k) other = candidate;
      }
      rotated[j] = v[j];
      if (e < rotary_dim) {
        const float* pair = cos_sin + (e < half ? e : e - half);
        const float c = px::Load(pair), s = px::Load(pair + half);
        rotated[j] = px::Fma(v[j], c, px::Mul(e < half ? -other : other, s));
      }
    }
    PX_UNROLL
    for (int j = 0; j < kPerLane; ++j) v[j] = rotated[j];
  }
  template <typename T>
  PX_DEVICE void Store(T* out, float factor, T (&stored)[kPerLane]) const {
    PX_UNROLL
    for (int j = 0; j < kPerLane; ++j) {
      stored[j] = px::FromFloat<T>(px::Mul(v[j], factor));
      if (j * 32 + px::Lane() < kDim) px::Store(out + j * 32 + px::Lane(), stored[j]);
    }
  }
};

/// One head of K or V into the row's slot, its digest into the unit's.
template <typename Kv, int kDim>
PX_DEVICE void StoreKvHead(const RopeKvParams<Kv>& p, const HeadVector<kDim>& x, int row, int slot, int kv_head,
                           bool is_v) {
  const int block = slot / p.tokens_per_block, offset = slot % p.tokens_per_block;
  Kv* out = (is_v ? p.v_base : p.k_base) + block * p.block_stride +
            (offset * p.kv_heads + kv_head) * static_cast<int64_t>(kDim);
  float inverse_scale = 1.0f;
  if constexpr (sizeof(Kv) == 1) inverse_scale = 1.0f / px::Load((is_v ? p.v_scale : p.k_scale) + kv_head);
  Kv stored[HeadVector<kDim>::kPerLane];
  x.Store(out, inverse_scale, stored);
  uint64_t* digests = is_v ? p.v_digests : p.k_digests;
  if (digests == nullptr) return;
  const KvCoordinate where{p.layer, is_v ? 1u : 0u, p.first_head + static_cast<uint32_t>(kv_head),
                           static_cast<uint32_t>(px::Load(p.positions + row))};
  const uint64_t sum = WarpDigest<Kv, kDim>(where, stored);
  if (px::Lane() != 0) return;
  uint64_t* const unit =
      digests + block * p.digest_block_stride + (offset / kDigestUnitTokens) * p.kv_heads + kv_head;
  if (p.apart && offset % kDigestUnitTokens == 0)
    px::Store(unit, sum);
  else
    px::AtomicAdd(unit, sum);
}

/// One warp per (row, head).
template <typename Kv, int kDim>
PX_KERNEL void PX_BOUNDS(kRopeThreads) RopeKvKernel(const PX_GRID_CONST RopeKvParams<Kv> p) {
  const int heads = p.q_heads + 2 * p.kv_heads, work = px::BlockX() * kRopeWarps + px::WarpIndex();
  px::GridDependencyWait();
  if (work >= p.rows * heads) return;
  const int row = work / heads, head = work % heads, k_head = head - p.q_heads, v_head = k_head - p.kv_heads;
  const int slot = px::Load(p.slots + row);
  if (slot < 0) return;
  const bool is_q = k_head < 0, is_v = v_head >= 0;
  HeadVector<kDim> x;
  x.Load(is_q   ? p.q + row * p.q_stride + head * kDim
         : is_v ? p.v + row * p.v_stride + v_head * kDim
                : p.k + row * p.k_stride + k_head * kDim);
  if (!is_v) {
    const float* norm = is_q ? p.q_norm : p.k_norm;
    if (norm != nullptr) x.Normalize(norm, p.norm_offset, p.norm_eps);
    x.Rotate(p.cos_sin + static_cast<int64_t>(px::Load(p.positions + row)) * p.rotary_dim, p.rotary_dim);
  }
  if (is_q) {
    px::bf16 stored[HeadVector<kDim>::kPerLane];
    x.Store(p.q_out + row * p.q_out_stride + head * kDim, 1.0f, stored);
  } else {
    StoreKvHead<Kv, kDim>(p, x, row, slot, is_v ? v_head : k_head, is_v);
  }
  px::GridDependencyRelease();
}

/// head_dim 64, 80, 96, 128 or 256 (kDim).
template <typename Kv, int kDim>
void LaunchRopeKv(gpu::Stream& stream, const RopeKvParams<Kv>& p, bool programmatic = false) {
  const int work = p.rows * (p.q_heads + 2 * p.kv_heads);
  if (work == 0) return;
  gpu::Launch(stream,
              {.grid = {static_cast<unsigned>((work + kRopeWarps - 1) / kRopeWarps)},
               .block = {kRopeThreads},
               .programmatic = programmatic},
              &RopeKvKernel<Kv, kDim>, p);
}

}  // namespace baton::cuda
