// Attention in AMX tiles for bf16 queries: what attention.inl computes, with both products in bf16 and their sums in
// f32.
//
// A row's result is a function of (q, K[first..last], V[first..last]) only. Tiles of 256 logical tokens begin at
// multiples of 256; inside one a score is a chain of tile products over the head's dimensions, and a tile's values are
// a chain over groups of 32 tokens, counted from the tile's first. A token that the row does not see has the weight
// zero, which adds nothing, provided its values are finite: where one is not, rows are computed apart, each over the
// tokens it sees. Weights are rounded to bf16 before they meet the values, and summed before that.

namespace {

using baton::kernels::cpu::kAmxAttentionRows;

constexpr int kRowGroup = 2 * kTileSide;                  // rows that go through the tile registers together
constexpr int kTokenTiles = kAttentionTile / kTileSide;   // of the scores' right side
constexpr int kTokenSteps = kAttentionTile / kTileDepth;  // of the values' k
constexpr int kDimSteps = kMaxHeadDim / kTileDepth;
constexpr int kDimTiles = kMaxHeadDim / kTileSide;
constexpr int kScoreStride = kAttentionTile + kTileSide;  // rows begin in different cache sets
constexpr int kValueStride = kMaxHeadDim + kTileSide;

/// One thread's working memory (about 550 KB, of which 64-wide heads touch 250).
struct AmxAttentionScratch {
  alignas(64) char q[kAmxAttentionRows / kTileSide][kDimSteps][kTileBytes];  // left tiles
  alignas(64) char k[kTokenTiles][kDimSteps][kTileBytes];                    // right tiles: 16 tokens each
  alignas(64) char v[kDimTiles][kTokenSteps][kTileBytes];                    // right tiles: 16 dimensions each
  alignas(64) char p[kRowGroup / kTileSide][kTokenSteps][kTileBytes];        // left tiles
  alignas(64) float scores[kRowGroup * kScoreStride];
  alignas(64) float tile[kRowGroup * kValueStride];         // Σ p·v of the tile
  alignas(64) float out[kAmxAttentionRows * kValueStride];  // … of the tiles so far
  float max[kAmxAttentionRows], sum[kAmxAttentionRows];     // of the tiles so far
  float tile_max[kRowGroup], tile_sum[kRowGroup];
  int begin[kAmxAttentionRows], end[kAmxAttentionRows];  // tokens of the tile that the row sees
};

/// n ≤ 32 elements as bf16, zeros after them.
inline __m512i Load32(const Bf16* p, int n) {
  return _mm512_maskz_loadu_epi16(n >= 32 ? ~__mmask32{0} : (__mmask32{1} << n) - 1, p);
}
inline __m512i Load32(const E4m3* p, int n) {
  const __m256i low = ToBf16(LoadE4m3(&p->bits, std::min(n, 16)));
  const __m256i high = n > 16 ? ToBf16(LoadE4m3(&p[16].bits, n - 16)) : _mm256_setzero_si256();
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/// The vectors of sixteen tokens beginning at a multiple of sixteen, all in one block: the first and the step to the
/// next.
template <class T>
struct SixteenTokens {
  SixteenTokens(const KvPlaneView& plane, const int32_t* blocks, int32_t token, int head)
      : first(TokenVector<T>(plane, blocks, token, head)), step(int64_t{plane.heads} * plane.dim) {}
  const T* first;
  int64_t step;
};

template <class T>
void LoadKeyTiles(const AttentionItem& item, int32_t tile, int begin, int end, AmxAttentionScratch& s) {
  const int dim = item.k->dim;
  for (int j = begin / kTileSide * kTileSide; j < end; j += kTileSide) {
    const SixteenTokens<T> tokens(*item.k, item.blocks, tile + j, item.kv_head);
    const int from = std::max(0, begin - j), to = std::min(kTileSide, end - j);
    for (int d = 0; d < dim; d += kTileDepth) {
      Vec block[kTileSide];  // 32-bit lanes: a pair of dimensions each
      for (int t = 0; t < kTileSide; ++t)
        block[t] = t >= from && t < to ? Vec{_mm512_castsi512_ps(Load32(tokens.first + t * tokens.step + d, dim - d))}
                                       : Zero();
      Transpose(block);
      float* pairs = reinterpret_cast<float*>(s.k[j / kTileSide][d / kTileDepth]);
      for (int i = 0; i < kTileSide; ++i) Store(pairs + i * kTileSide, block[i]);
    }
  }
}

/// Values of the tokens [from, to) into the tiles that [begin, end) touches, zeros for other tokens. False: one of them
/// is infinite or not a number.
template <class T>
bool LoadValueTiles(const AttentionItem& item, int32_t tile, int begin, int end, int from, int to,
                    AmxAttentionScratch& s) {
  const int dim = item.v->dim;
  const __m512i infinity = _mm512_set1_epi16(0x7F80), size = _mm512_set1_epi16(0x7FFF);
  alignas(64) static constexpr auto kInterleave = [] {
    std::array<uint16_t, 64> order{};  // a's and b's elements in turn: the lower 16 of each, then the upper
    for (uint16_t i = 0; i < 32; ++i) order[2 * i] = i, order[2 * i + 1] = static_cast<uint16_t>(32 + i);
    return order;
  }();
  const __m512i lower = _mm512_load_si512(kInterleave.data()), upper = _mm512_load_si512(kInterleave.data() + 32);
  __mmask32 strange = 0;
  for (int j = begin / kTileDepth * kTileDepth; j < (end + kTileDepth - 1) / kTileDepth * kTileDepth; j += kTileSide) {
    const int first = std::max(0, from - j), last = std::min(kTileSide, to - j);
    const T* token = nullptr;  // of a group that nobody reads there may be no block
    int64_t step = 0;
    if (first < last) {
      const SixteenTokens<T> tokens(*item.v, item.blocks, tile + j, item.kv_head);
      token = tokens.first, step = tokens.step;
    }
    auto load = [&](int t, int d) {
      return t >= first && t < last ? Load32(token + t * step + d, dim - d) : _mm512_setzero_si512();
    };
    for (int t = 0; t < kTileSide; t += 2) {
      const int64_t at = j / kTileDepth * kTileBytes + (j % kTileDepth + t) / 2 * 64;
      for (int d = 0; d < dim; d += kTileDepth) {
        const __m512i x = load(t, d), y = load(t + 1, d);
        strange |= _mm512_cmpge_epu16_mask(_mm512_and_si512(x, size), infinity) |
                   _mm512_cmpge_epu16_mask(_mm512_and_si512(y, size), infinity);
        _mm512_store_si512(s.v[d / kTileSide][0] + at, _mm512_permutex2var_epi16(x, lower, y));
        _mm512_store_si512(s.v[d / kTileSide + 1][0] + at, _mm512_permutex2var_epi16(x, upper, y));
      }
    }
  }
  return strange == 0;
}

/// Tokens that any of the rows [row, row + rows) sees; empty: begin ≥ end.
struct TokenRange {
  int begin = kAttentionTile, end = 0;
};
inline TokenRange RangeOf(const AmxAttentionScratch& s, int row, int rows) {
  TokenRange range;
  for (int i = row; i < row + rows; ++i) {
    if (s.begin[i] >= s.end[i]) continue;
    range.begin = std::min(range.begin, s.begin[i]);
    range.end = std::max(range.end, s.end[i]);
  }
  return range;
}

template <bool kTwo>
void ScoreTokens(int row, int dim, TokenRange range, AmxAttentionScratch& s) {
  const int steps = (dim + kTileDepth - 1) / kTileDepth;
  for (int j = range.begin / kRowGroup * kRowGroup; j < range.end; j += 2 * kTileSide) {
    MultiplyTiles<kTwo, true>({s.q[row / kTileSide][0]}, kTwo ? s.q[row / kTileSide + 1][0] : nullptr,
                              {s.k[j / kTileSide][0]}, s.k[j / kTileSide + 1][0], steps);
    StoreTiles<kTwo, true>(s.scores + j, kScoreStride);
  }
}

/// 2^x for x ≤ 0, relative error < 8e-6, 0 below -126. x = -inf gives 0.
inline Vec ExpOfTwo(Vec x) {
  const Vec low = Set(-127.0f);
  const Vec clamped = Max(x, low);
  const Vec n = Round(clamped);
  const Vec r = Sub(clamped, n);  // in [-0.5, 0.5]
  Vec p = Set(0.00965671f);
  p = Fma(p, r, Set(0.05583828f));
  p = Fma(p, r, Set(0.2402253f));
  p = Fma(p, r, Set(0.69313673f));
  p = Fma(p, r, Set(1.0f));
  return {_mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(clamped.v, low.v, _CMP_GT_OQ), p.v, n.v)};
}

/// Scores of row `g` of the group become weights in bf16 relative to the tile's maximum, zero for tokens that the row
/// does not see, over the groups of 32 that `range` touches.
void SoftmaxTokens(int g, int begin, int end, TokenRange range, const AttentionItem& item, AmxAttentionScratch& s) {
  constexpr float kLog2E = 1.44269504088896341f;
  float* scores = s.scores + g * kScoreStride;
  const Vec nothing = Set(kNothing);
  float scale = item.scale;
  Vec max = nothing;
  for (int j = begin / 16 * 16; j < end; j += 16) {
    Vec x = Load(scores + j);
    const bool part = j < begin || j + 16 > end;
    if (item.softcap > 0) x = Mul(Set(item.softcap), Tanh(Mul(x, Set(scale / item.softcap))));
    if (part) x = KeepLanes(x, begin - j, end - j, nothing);
    if (part || item.softcap > 0) Store(scores + j, x);
    max = Max(max, x);
  }
  if (item.softcap > 0) scale = 1;
  s.tile_max[g] = MaxLanes(max) * scale;
  const Vec factor = Set(scale * kLog2E), shift = Set(-s.tile_max[g] * kLog2E);
  Vec sum = Zero();
  auto weigh = [&](int j) {
    if (j + 16 <= begin || j >= end) return Zero();
    const Vec p = ExpOfTwo(Fma(Load(scores + j), factor, shift));
    sum = Add(sum, p);
    return p;
  };
  char* to = s.p[g / kTileSide][0] + g % kTileSide * 64;
  for (int j = range.begin / kTileDepth * kTileDepth; j < range.end; j += kTileDepth) {
    const Vec low = weigh(j), high = weigh(j + 16);
    _mm512_store_si512(to + j / kTileDepth * kTileBytes, ToBf16(low, high));
  }
  s.tile_sum[g] = SumLanes(sum);
}

template <bool kTwo>
void SumValues(int dim, TokenRange range, AmxAttentionScratch& s) {
  const int first = range.begin / kTileDepth, steps = (range.end + kTileDepth - 1) / kTileDepth - first;
  for (int d = 0; d < dim; d += 2 * kTileSide) {
    MultiplyTiles<kTwo, true>({s.p[0][first]}, s.p[1][first], {s.v[d / kTileSide][first]},
                              s.v[d / kTileSide + 1][first], steps);
    StoreTiles<kTwo, true>(s.tile + d, kValueStride);
  }
}

/// The tile's values of row `g` of the group join those of `row` of the item. (A sum of -0 becomes +0 here, whatever
/// zeros were added to it.)
void MergeValues(int row, int g, int dim, AmxAttentionScratch& s) {
  const float max = std::max(s.max[row], s.tile_max[g]);
  const float keep = s.max[row] == kNothing ? 0.0f : ExpOne(s.max[row] - max), take = ExpOne(s.tile_max[g] - max);
  s.sum[row] = s.sum[row] * keep + s.tile_sum[g] * take;
  s.max[row] = max;
  float* out = s.out + row * kValueStride;
  const float* tile = s.tile + g * kValueStride;
  ForChunks(dim,
            [&](int64_t d, int) { Store(out + d, Fma(Load(tile + d), Set(take), Mul(Load(out + d), Set(keep)))); });
}

/// Rows [row, row + rows) of the item, rows ≤ 32, against the tile whose keys and values are loaded.
template <class T>
void AttendGroup(const AttentionItem& item, int32_t tile, int row, int rows, TokenRange loaded, bool finite,
                 AmxAttentionScratch& s) {
  const TokenRange range = RangeOf(s, row, rows);
  if (range.begin >= range.end) return;
  const bool two = rows > kTileSide;
  if (two)
    ScoreTokens<true>(row, item.k->dim, range, s);
  else
    ScoreTokens<false>(row, item.k->dim, range, s);
  for (int g = 0; g < rows; ++g) {
    if (s.begin[row + g] < s.end[row + g]) SoftmaxTokens(g, s.begin[row + g], s.end[row + g], range, item, s);
  }
  auto sum_values = [&] {
    if (two)
      SumValues<true>(item.v->dim, range, s);
    else
      SumValues<false>(item.v->dim, range, s);
  };
  if (finite) sum_values();
  for (int g = 0; g < rows; ++g) {
    if (s.begin[row + g] >= s.end[row + g]) continue;
    if (!finite) {
      LoadValueTiles<T>(item, tile, loaded.begin, loaded.end, s.begin[row + g], s.end[row + g], s);
      sum_values();
    }
    MergeValues(row + g, g, item.v->dim, s);
  }
}

void LoadQueryTiles(const AttentionItem& item, AmxAttentionScratch& s) {
  const int dim = item.k->dim, rows = item.rows * item.heads;
  for (int i = 0; i < rows; ++i) {
    const char* from = static_cast<const char*>(item.q) + (i / item.heads) * item.q_row_bytes;
    const Bf16* head = reinterpret_cast<const Bf16*>(from) + (i % item.heads) * dim;
    for (int d = 0; d < dim; d += kTileDepth)
      _mm512_store_si512(s.q[i / kTileSide][d / kTileDepth] + i % kTileSide * 64, Load32(head + d, dim - d));
    const float* sink = item.sinks != nullptr ? item.sinks + i % item.heads : nullptr;
    s.max[i] = sink != nullptr ? *sink : kNothing;
    s.sum[i] = sink != nullptr ? 1.0f : 0.0f;
    std::fill_n(s.out + i * kValueStride, (dim + 15) / 16 * 16, 0.0f);
  }
}

template <class T>
void AttendTiles(const AttentionItem& item, AmxAttentionScratch& s) {
  const int rows = item.rows * item.heads, dim = item.v->dim;
  LoadQueryTiles(item, s);
  {
    const TileRegisters registers(kTileSide, kTileSide);
    const int32_t first = item.window > 0 ? std::max(0, item.first_position - item.window + 1) : 0;
    const int32_t last = item.first_position + item.rows - 1;
    for (int32_t tile = first / kAttentionTile * kAttentionTile; tile <= last; tile += kAttentionTile) {
      TokenRange seen;
      if (!SetRanges(item, tile, s.begin, s.end, &seen.begin, &seen.end)) continue;
      LoadKeyTiles<T>(item, tile, seen.begin, seen.end, s);
      const bool finite = LoadValueTiles<T>(item, tile, seen.begin, seen.end, seen.begin, seen.end, s);
      for (int row = 0; row < rows; row += kRowGroup)
        AttendGroup<T>(item, tile, row, std::min(kRowGroup, rows - row), seen, finite, s);
    }
  }
  for (int i = 0; i < rows; ++i) {
    Bf16* head = reinterpret_cast<Bf16*>(static_cast<char*>(item.out) + (i / item.heads) * item.out_row_bytes) +
                 (i % item.heads) * dim;
    const Vec inverse = Set(item.v_scale / s.sum[i]);
    ForChunks(dim, [&](int64_t d, int n) { StoreAs(head + d, Mul(Load(s.out + i * kValueStride + d), inverse), n); });
  }
}

/// Of bf16 queries; KV in bf16 or e4m3.
void AttendAmx(const AttentionItem& item) {
  static thread_local const std::unique_ptr<AmxAttentionScratch> scratch = std::make_unique<AmxAttentionScratch>();
  if (item.k->dtype == DType::kBF16)
    AttendTiles<Bf16>(item, *scratch);
  else
    AttendTiles<E4m3>(item, *scratch);
}

}  // namespace
