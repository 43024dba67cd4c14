// The KV digest: Σ mod 2⁶⁴ of mix(key(plane, layer, kv head, token, word), 8 payload bytes).
//
// Additive, so any partition of the cache composes; keyed by logical coordinates, so right bytes in a wrong place fail.
// Kept per (16-token unit, layer, plane, head) by the op that writes KV; the sender re-derives it while it gathers, the
// receiver while it places. It guards against faults, not against forgery. Header-only: used on host and device.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__) && !defined(BATON_SIMT)
#define BATON_HOST_DEVICE __host__ __device__
#else
#define BATON_HOST_DEVICE
#endif

namespace baton {

/// Which digests this build makes; what moves KV agrees on it in the handshake. A build without them is for measuring
/// alone (-DBATON_KV_DIGESTS=OFF): it would read damaged KV, and works with no other build.
#ifdef BATON_NO_KV_DIGESTS
inline constexpr bool kMakesKvDigests = false;
inline constexpr char kKvDigestName[] = "off";
#else
inline constexpr bool kMakesKvDigests = true;
inline constexpr char kKvDigestName[] = "sum64";
#endif
/// What a worker means that names none: it is older than the name.
inline constexpr char kKvDigestUnnamed[] = "sum64";

/// Where a token's vector lives, in global numbers (before any TP, PP or block cut).
struct KvCoordinate {
  uint32_t layer;
  uint32_t plane;  ///< index of the plane in its group
  uint32_t head;   ///< global KV head
  uint32_t token;  ///< position in the sequence
};

/// Key of one (plane, layer, head, token); the word index is added to it.
BATON_HOST_DEVICE inline uint64_t KvDigestKey(const KvCoordinate& c) {
  uint64_t k = (static_cast<uint64_t>(c.token) << 32) ^ (static_cast<uint64_t>(c.layer) << 16) ^
               (static_cast<uint64_t>(c.plane) << 12) ^ c.head;
  k *= 0x9E3779B97F4A7C15ull;
  k ^= k >> 32;
  return k * 0xD6E8FEB86659FD93ull;
}

/// One 8-byte payload word at `word_index` under `key`.
BATON_HOST_DEVICE inline uint64_t KvDigestMix(uint64_t key, uint32_t word_index, uint64_t word) {
#ifdef BATON_NO_KV_DIGESTS  // to measure what they cost
  return 0;
#endif
  uint64_t x = word + key + static_cast<uint64_t>(word_index) * 0x9E3779B97F4A7C15ull;
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93ull;
  x ^= x >> 29;
  return x * 0x9E3779B97F4A7C15ull;
}

/// Digest of one token's vector of `bytes` bytes (a multiple of 8) at `c`.
BATON_HOST_DEVICE inline uint64_t KvDigestVector(const KvCoordinate& c, const void* data, uint32_t bytes) {
  const uint64_t key = KvDigestKey(c);
  const char* p = static_cast<const char*>(data);
  uint64_t sum = 0;
  for (uint32_t w = 0; w < bytes / 8; ++w) {
    uint64_t word;
    memcpy(&word, p + 8 * w, 8);
    sum += KvDigestMix(key, w, word);
  }
  return sum;
}

}  // namespace baton
