// Reductions and 16-byte row access shared by the row-wise kernels.
#pragma once

#include <type_traits>

#include "kernels/px/px.h"

namespace baton::cuda {

/// Sum over the 32 lanes, the same bits in every lane (butterfly: fixed order).
PX_DEVICE float WarpSum(float v) {
  PX_UNROLL
  for (int m = 16; m > 0; m /= 2) v = px::Add(v, px::ShuffleXor(v, m));
  return v;
}
PX_DEVICE float WarpMax(float v) {
  PX_UNROLL
  for (int m = 16; m > 0; m /= 2) v = px::Max(v, px::ShuffleXor(v, m));
  return v;
}
PX_DEVICE uint64_t ShuffleXor64(uint64_t v, int m) {
  const uint32_t low = px::ShuffleXor(static_cast<uint32_t>(v), m),
                 high = px::ShuffleXor(static_cast<uint32_t>(v >> 32), m);
  return static_cast<uint64_t>(high) << 32 | low;
}
PX_DEVICE uint64_t WarpSum64(uint64_t v) {
  PX_UNROLL
  for (int m = 16; m > 0; m /= 2) v += ShuffleXor64(v, m);
  return v;
}

/// Sum over a block of kWarps warps. `partial` is [kWarps] in shared memory; call again only after a barrier.
template <int kWarps>
PX_DEVICE float BlockSum(float v, float* partial) {
  v = WarpSum(v);
  if (px::Lane() == 0) px::StoreShared(partial + px::WarpIndex(), v);
  px::SyncThreads();
  float sum = 0.0f;
  PX_UNROLL
  for (int w = 0; w < kWarps; ++w) sum = px::Add(sum, px::LoadShared(partial + w));
  return sum;
}

/// Elements of T in one 16-byte access.
template <typename T>
constexpr int kPerVector = 16 / static_cast<int>(sizeof(T));

/// Two elements of T (f16 or bf16) in a word, the first in the low half.
template <typename T>
PX_DEVICE px::F2 UnpackPair(uint32_t word) {
  static_assert(sizeof(T) == 2);
  if constexpr (std::is_same_v<T, px::f16>)
    return {px::F16BitsToFloat(word & 0xFFFFu), px::F16BitsToFloat(word >> 16)};
  else
    return px::UnpackBf16(word);
}
/// 16 bytes of T at p (aligned) as floats.
template <typename T>
PX_DEVICE void LoadVector(const T* p, float (&out)[kPerVector<T>]) {
  const px::U128 raw = px::Load(reinterpret_cast<const px::U128*>(p));
  if constexpr (sizeof(T) == 4) {
    PX_UNROLL
    for (int i = 0; i < 4; ++i) out[i] = px::BitCast<float>(raw.w[i]);
  } else {
    PX_UNROLL
    for (int i = 0; i < 4; ++i) {
      const px::F2 pair = UnpackPair<T>(raw.w[i]);
      out[2 * i] = pair.x;
      out[2 * i + 1] = pair.y;
    }
  }
}
/// Four elements of T at p (aligned to all four) as floats: with it a warp's accesses of narrower and of wider rows are
/// both without gaps.
template <typename T>
PX_DEVICE void LoadFour(const T* p, float (&out)[4]) {
  if constexpr (sizeof(T) == 4) {
    LoadVector(p, out);
  } else {
    const px::U64 raw = px::Load(reinterpret_cast<const px::U64*>(p));
    PX_UNROLL
    for (int i = 0; i < 2; ++i) {
      const px::F2 pair = UnpackPair<T>(raw.w[i]);
      out[2 * i] = pair.x;
      out[2 * i + 1] = pair.y;
    }
  }
}
/// Four e4m3 in a word, the first in the lowest byte.
PX_DEVICE uint32_t PackE4m3Four(float a, float b, float c, float d) {
  return px::PackE4m3(a, b) | static_cast<uint32_t>(px::PackE4m3(c, d)) << 16;
}
/// n floats (4, 8 or 16) to n elements of T at p, aligned to them, at most to 16 bytes; in as few accesses as there can be.
template <typename T, int n>
PX_DEVICE void StoreVector(T* p, const float (&v)[n]) {
  static_assert(n == 4 || n == 8 || n == 16);
  if constexpr (sizeof(T) == 4) {
    PX_UNROLL
    for (int i = 0; i < n; i += 4)
      px::Store(reinterpret_cast<px::U128*>(p + i),
                px::U128{px::BitCast<uint32_t>(v[i]), px::BitCast<uint32_t>(v[i + 1]), px::BitCast<uint32_t>(v[i + 2]),
                         px::BitCast<uint32_t>(v[i + 3])});
  } else if constexpr (sizeof(T) == 2) {
    if constexpr (n == 4) {
      px::Store(reinterpret_cast<px::U64*>(p), px::U64{px::PackBf16(v[0], v[1]), px::PackBf16(v[2], v[3])});
    } else {
      PX_UNROLL
      for (int i = 0; i < n; i += 8)
        px::Store(reinterpret_cast<px::U128*>(p + i),
                  px::U128{px::PackBf16(v[i], v[i + 1]), px::PackBf16(v[i + 2], v[i + 3]),
                           px::PackBf16(v[i + 4], v[i + 5]), px::PackBf16(v[i + 6], v[i + 7])});
    }
  } else {
    uint32_t words[n / 4];
    PX_UNROLL
    for (int i = 0; i < n; i += 4) words[i / 4] = PackE4m3Four(v[i], v[i + 1], v[i + 2], v[i + 3]);
    if constexpr (n == 4)
      px::Store(reinterpret_cast<uint32_t*>(p), words[0]);
    else if constexpr (n == 8)
      px::Store(reinterpret_cast<px::U64*>(p), px::U64{words[0], words[1]});
    else
      px::Store(reinterpret_cast<px::U128*>(p), px::U128{words[0], words[1], words[2], words[3]});
  }
}

}  // namespace baton::cuda
