// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC'11).
// Header-only: host and device draw the same bits, so a token does not depend on where it was sampled.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define BATON_PHILOX_FN __host__ __device__ inline
#else
#define BATON_PHILOX_FN inline
#endif

namespace baton::kernels {

struct PhiloxBlock {
  uint32_t word[4];
};

/// Four random words of `counter` under `key`.
BATON_PHILOX_FN PhiloxBlock Philox4x32(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = 0xD2511F53ull * counter.word[0];
    const uint64_t p1 = 0xCD9E8D57ull * counter.word[2];
    counter = {{static_cast<uint32_t>(p1 >> 32) ^ counter.word[1] ^ key0, static_cast<uint32_t>(p1),
                static_cast<uint32_t>(p0 >> 32) ^ counter.word[3] ^ key1, static_cast<uint32_t>(p0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

/// The random word of one token id: four neighbouring ids share a block. (seed, sequence, position) name the draw.
BATON_PHILOX_FN uint32_t PhiloxWordOf(uint64_t seed, uint32_t sequence_index, uint64_t position, uint32_t token) {
  const PhiloxBlock counter{
      {token >> 2, sequence_index, static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32)}};
  const PhiloxBlock r = Philox4x32(counter, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return r.word[token & 3];
}

}  // namespace baton::kernels
