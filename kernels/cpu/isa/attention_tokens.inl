// What every attention kernel asks of its item: where a token's vector lies, and which tokens of a tile a row sees.

namespace {

using baton::kernels::KvPlaneView;
using baton::kernels::cpu::AttentionItem;
using baton::kernels::cpu::kAttentionTile;

constexpr int kMaxHeadDim = 256;
constexpr float kNothing = -__builtin_inff();

template <class T>
inline const T* TokenVector(const KvPlaneView& plane, const int32_t* blocks, int32_t token, int head) {
  const char* base =
      static_cast<const char*>(plane.base) + blocks[token / plane.tokens_per_block] * plane.block_stride_bytes;
  return reinterpret_cast<const T*>(base) +
         (static_cast<int64_t>(token % plane.tokens_per_block) * plane.heads + head) * plane.dim;
}

// While a token is read, the one so far behind it is on its way into the cache: a head's vectors lie apart, and no processor
// guesses the next block. Of 16, 32 and 48, into the first cache or the second, this was best on the whole
// (bench/results/2026-12-01-2-cores-avx2-attention-ahead.json).
constexpr int kTokensAhead = 16;

/// Where the vectors of a tile's tokens lie; those of the next kTokensAhead, too, when there are so many.
struct TokenVectors {
  const void* at[kAttentionTile + kTokensAhead];

  /// Tokens [begin, end) of the tile, which begins at `tile` of a context of `tokens`.
  template <class T>
  void Set(const KvPlaneView& plane, const int32_t* blocks, int32_t tokens, int32_t tile, int begin, int end, int head) {
    const int64_t step = int64_t{plane.heads} * plane.dim;
    const int known = std::min(tokens - tile, end + kTokensAhead);
    for (int from = begin, to; from < known; from = to) {  // one block at a time
      to = std::min(known, from + plane.tokens_per_block - (tile + from) % plane.tokens_per_block);
      const T* vector = TokenVector<T>(plane, blocks, tile + from, head);
      for (int j = from; j < to; ++j, vector += step) at[j] = vector;
    }
    std::fill(at + known, at + end + kTokensAhead, at[known - 1]);
  }
  /// Asks for the cache line of token j's vector that its element d is in, where that is the line's first.
  template <class T>
  void Fetch(int j, int64_t d) const {
    if (d * sizeof(T) % 64 == 0) __builtin_prefetch(static_cast<const T*>(at[j]) + d, 0, 3);
  }
};

/// Sets what each row sees of the tile, [begins[i], ends[i]), and what any of them sees; false when none sees anything.
inline bool SetRanges(const AttentionItem& item, int32_t tile, int* begins, int* ends, int* begin, int* end) {
  *begin = kAttentionTile, *end = 0;
  for (int i = 0; i < item.rows * item.heads; ++i) {
    const int32_t position = item.first_position + i / item.heads;
    const int32_t first = item.window > 0 && position >= item.window ? position - item.window + 1 : 0;
    begins[i] = std::max<int32_t>(first - tile, 0);
    ends[i] = std::min<int32_t>(position + 1 - tile, kAttentionTile);
    if (ends[i] <= begins[i]) {
      begins[i] = ends[i] = 0;
      continue;
    }
    *begin = std::min(*begin, begins[i]);
    *end = std::max(*end, ends[i]);
  }
  return *begin < *end;
}

inline float ExpOne(float x) {
  alignas(64) float y[16];
  Store(y, Exp(Set(x)));
  return y[0];
}

}  // namespace
