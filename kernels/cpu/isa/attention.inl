// One query row and head against the paged context: online softmax over fixed tiles of 256 logical tokens.
//
// A row's result is a function of (q, K[first..last], V[first..last]) only: tiles begin at multiples of 256 whatever the
// window or the chunk, lanes of a tile are fixed by position, sums go in index order. Prefill and decode run this code.
// The query is scaled first, then dotted: one vector accumulator per 16 dimensions is folded by a fixed tree.

namespace {

using baton::kernels::KvPlaneView;
using baton::kernels::cpu::AttentionRow;
using baton::kernels::cpu::kAttentionTile;

constexpr int kMaxHeadDim = 256;

template <class T>
inline const T* TokenRow(const KvPlaneView& plane, const int32_t* blocks, int32_t token, int head) {
  const int32_t block = blocks[token / plane.tokens_per_block];
  const char* base = static_cast<const char*>(plane.base) + static_cast<int64_t>(block) * plane.block_stride_bytes;
  return reinterpret_cast<const T*>(base) + (static_cast<int64_t>(token % plane.tokens_per_block) * plane.heads + head) * plane.dim;
}

/// q · k over dim, a multiple of 8.
template <class T>
inline float Dot(const float* q, const T* k, int dim) {
  Vec sum = Zero();
  int i = 0;
  for (; i + 16 <= dim; i += 16) sum = Fma(Load(q + i), LoadAs(k + i), sum);
  if (i < dim) sum = Fma(Load(q + i, dim - i), LoadAs(k + i, dim - i), sum);
  return SumLanes(sum);
}

/// Scores of tile positions [begin, end) into s; the rest of the used chunks becomes -inf.
template <class T>
inline void ScoreTile(const AttentionRow& row, const float* q, int32_t tile_start, int begin, int end, float* s) {
  const int padded = (end + 15) / 16 * 16;
  for (int j = begin / 16 * 16; j < begin; ++j) s[j] = -__builtin_inff();
  for (int j = begin; j < end; ++j) s[j] = Dot(q, TokenRow<T>(*row.k, row.blocks, tile_start + j, row.kv_head), row.k->dim);
  if (row.softcap > 0) {
    const Vec cap = Set(row.softcap), inverse = Set(1.0f / row.softcap);
    for (int j = begin / 16 * 16; j < end; j += 16) {
      const Vec x = KeepLanes(Load(s + j), begin - j, end - j, Zero());
      Store(s + j, KeepLanes(Mul(cap, Tanh(Mul(x, inverse))), begin - j, end - j, Set(-__builtin_inff())));
    }
  }
  for (int j = end; j < padded; ++j) s[j] = -__builtin_inff();
}

template <class T>
inline void AddValues(const AttentionRow& row, const float* p, int32_t tile_start, int begin, int end, float* acc) {
  const int dim = row.v->dim;
  for (int j = begin; j < end; ++j) {
    const T* v = TokenRow<T>(*row.v, row.blocks, tile_start + j, row.kv_head);
    const Vec weight = Set(p[j]);
    for (int i = 0; i + 16 <= dim; i += 16) Store(acc + i, Fma(weight, LoadAs(v + i), Load(acc + i)));
    if (dim % 16 != 0) {
      const int i = dim / 16 * 16;
      Store(acc + i, Fma(weight, LoadAs(v + i, dim - i), Load(acc + i, dim - i)), dim - i);
    }
  }
}

template <class T>
void AttendTyped(const AttentionRow& row) {
  const int dim = row.k->dim;
  alignas(64) float q[kMaxHeadDim], acc[kMaxHeadDim] = {}, s[kAttentionTile];
  WithType(row.q, row.dtype, [&](const auto* from) {
    ForChunks(dim, [&](int64_t i, int c) { Store(q + i, Mul(LoadAs(from + i, c), Set(row.scale)), c); });
  });
  float max = row.sink != nullptr ? *row.sink : -__builtin_inff();
  float sum = row.sink != nullptr ? 1.0f : 0.0f;
  for (int32_t tile = row.first / kAttentionTile * kAttentionTile; tile <= row.last; tile += kAttentionTile) {
    const int begin = row.first > tile ? row.first - tile : 0;
    const int end = row.last + 1 - tile < kAttentionTile ? row.last + 1 - tile : kAttentionTile;
    const int first_chunk = begin / 16 * 16;
    ScoreTile<T>(row, q, tile, begin, end, s);
    Vec tile_max = Set(-__builtin_inff());
    for (int j = first_chunk; j < end; j += 16) tile_max = Max(tile_max, Load(s + j));
    const float new_max = std::max(max, MaxLanes(tile_max));
    alignas(64) float change[16];
    Store(change, Exp(Set(max - new_max)));
    const float factor = max == -__builtin_inff() ? 0.0f : change[0];
    const Vec shift = Set(new_max);
    Vec tile_sum = Zero();
    for (int j = first_chunk; j < end; j += 16) {
      const Vec p = Exp(Sub(Load(s + j), shift));  // exp(-inf) is 0
      Store(s + j, p);
      tile_sum = Add(tile_sum, p);
    }
    sum = sum * factor + SumLanes(tile_sum);
    ForChunks(dim, [&](int64_t i, int) { Store(acc + i, Mul(Load(acc + i), Set(factor))); });
    AddValues<T>(row, s, tile, begin, end, acc);
    max = new_max;
  }
  const Vec inverse = Set(1.0f / sum);
  WithType(row.out, row.dtype, [&](auto* to) {
    ForChunks(dim, [&](int64_t i, int c) { StoreAs(to + i, Mul(Load(acc + i, c), inverse), c); });
  });
}

void Attend(const AttentionRow& row) {
  if (row.k->dtype == DType::kF32) AttendTyped<float>(row);
  else if (row.k->dtype == DType::kBF16) AttendTyped<Bf16>(row);
  else AttendTyped<F16>(row);
}

}  // namespace
