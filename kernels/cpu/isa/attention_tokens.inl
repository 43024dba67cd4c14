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
