// A block of query rows that share one KV head, against the paged context: softmax over fixed tiles of 256 logical tokens.
//
// A row's result is a function of (q, K[first..last], V[first..last]) only. Tiles begin at multiples of 256 whatever the
// window or the chunk. A score is one chain of fused multiply-adds over the head's dimensions; a tile's values are one
// chain over its tokens; each tile is normalized to its own maximum and tiles are merged in index order. Prefill and
// decode run this code, and tiles could be computed apart without changing a bit.
//
// K is transposed into panels of 64 tokens and V copied into panels of 64 dimensions, so both products are the linear
// layer's Tile. Included after attention_tokens.inl and linear.inl.

namespace {

using baton::kernels::cpu::kAttentionRows;

constexpr int kTokenPanels = kAttentionTile / kPanelColumns;
constexpr int kDimPanels = kMaxHeadDim / kPanelColumns;

/// One thread's working memory (about 700 KB).
struct AttentionScratch {
  alignas(64) float q[kAttentionRows * kMaxHeadDim];                             // [rows][dim], scaled
  alignas(64) float k[kTokenPanels * kMaxHeadDim * kPanelColumns];               // [token panel][dim][64 tokens]
  alignas(64) float v[kDimPanels * kAttentionTile * kPanelColumns];              // [dim panel][256 tokens][64 dims]
  alignas(64) float scores[kTokenPanels * kAttentionRows * kPanelColumns];       // [token panel][rows][64]
  alignas(64) float tile[kDimPanels * kAttentionRows * kPanelColumns];           // [dim panel][rows][64] Σ p·v of the tile
  alignas(64) float out[kDimPanels * kAttentionRows * kPanelColumns];            // … of the tiles so far
  float max[kAttentionRows], sum[kAttentionRows];                                // of the tiles so far
  float tile_max[kAttentionRows], tile_sum[kAttentionRows];
  int begin[kAttentionRows], end[kAttentionRows];  // tokens of the tile that the row sees
  TokenVectors vectors;                            // the tile's keys, then its values
};

/// Tokens [begin, end) of the tile into transposed panels; the rest of a touched group of 16 becomes zero.
template <class T>
void LoadKeys(const TokenVectors& keys, int dim, int begin, int end, float* k) {
  for (int j = begin / 16 * 16; j < end; j += 16) {
    float* to = k + static_cast<int64_t>(j / kPanelColumns) * dim * kPanelColumns + j % kPanelColumns;
    const T* rows[16];
    for (int t = 0; t < 16; ++t) {
      rows[t] = j + t >= begin && j + t < end ? static_cast<const T*>(keys.at[j + t]) : nullptr;
    }
    ForChunks(dim, [&](int64_t d, int n) {
      for (int t = 0; t < 16; ++t) keys.Fetch<T>(std::clamp(j + t, begin, end - 1) + kTokensAhead, d);
      Vec block[16];
      for (int t = 0; t < 16; ++t) block[t] = rows[t] == nullptr ? Zero() : n == 16 ? LoadAs(rows[t] + d) : LoadAs(rows[t] + d, n);
      Transpose(block);
      for (int i = 0; i < n; ++i) Store(to + (d + i) * kPanelColumns, block[i]);
    });
  }
}

template <class T>
void LoadValues(const TokenVectors& values, int dim, int begin, int end, float* v) {
  for (int j = begin; j < end; ++j) {
    const T* from = static_cast<const T*>(values.at[j]);
    ForChunks(dim, [&](int64_t d, int n) {
      values.Fetch<T>(j + kTokensAhead, d);
      float* to = v + (d / kPanelColumns * kAttentionTile + j) * kPanelColumns + d % kPanelColumns;
      Store(to, n == 16 ? LoadAs(from + d) : LoadAs(from + d, n));
    });
  }
}

/// Scores of rows [0, rows) against the token panels that [begin, end) touches.
void ScoreTile(int rows, int dim, int begin, int end, AttentionScratch& s) {
  for (int p = begin / kPanelColumns; p * kPanelColumns < end; ++p) {
    float* sums = s.scores + p * kAttentionRows * kPanelColumns;
    std::fill_n(sums, rows * kPanelColumns, 0.0f);
    Block(s.q, kMaxHeadDim, rows, s.k + static_cast<int64_t>(p) * dim * kPanelColumns, dim, kPanelColumns, sums);
  }
}

/// Scores of one row become weights relative to the tile's maximum; outside [begin, end) they become zero.
void SoftmaxRow(int row, float softcap, AttentionScratch& s) {
  const int begin = s.begin[row], end = s.end[row];
  auto at = [&](int j) { return s.scores + (j / kPanelColumns * kAttentionRows + row) * kPanelColumns + j % kPanelColumns; };
  const Vec nothing = Set(kNothing), cap = Set(softcap), inverse = Set(softcap > 0 ? 1.0f / softcap : 0.0f);
  Vec max = nothing;
  for (int j = begin / 16 * 16; j < end; j += 16) {
    Vec x = Load(at(j));
    if (softcap > 0) x = Mul(cap, Tanh(Mul(x, inverse)));
    x = KeepLanes(x, begin - j, end - j, nothing);
    Store(at(j), x);
    max = Max(max, x);
  }
  s.tile_max[row] = MaxLanes(max);
  const Vec shift = Set(s.tile_max[row]);
  Vec sum = Zero();
  for (int j = begin / 16 * 16; j < end; j += 16) {
    const Vec p = Exp(Sub(Load(at(j)), shift));  // e^-inf is 0
    Store(at(j), p);
    sum = Add(sum, p);
  }
  s.tile_sum[row] = SumLanes(sum);
}

/// tile[row] = Σ p · v over the tokens [begin, end) of each row, in order. Rows of a group of six share the tokens that all
/// of them see; what only some see is added row by row, so no row touches a value it must not see.
void AddValues(int rows, int dim, AttentionScratch& s) {
  const int columns = (dim + kTileColumns - 1) / kTileColumns * kTileColumns;
  auto add = [&](int row, int count, int begin, int end) {
    for (int from = begin, to; from < end; from = to) {  // one token panel at a time
      const int p = from / kPanelColumns;
      to = std::min(end, (p + 1) * kPanelColumns);
      const float* weights = s.scores + (p * kAttentionRows + row) * kPanelColumns + from % kPanelColumns;
      for (int c = 0; c < columns; c += kTileColumns) {
        const int d = c / kPanelColumns;
        TileOf(count, weights, kPanelColumns, s.v + (d * kAttentionTile + from) * kPanelColumns + c % kPanelColumns, to - from,
               s.tile + (d * kAttentionRows + row) * kPanelColumns + c % kPanelColumns);
      }
    }
  };
  for (int d = 0; d * kPanelColumns < columns; ++d) std::fill_n(s.tile + d * kAttentionRows * kPanelColumns, rows * kPanelColumns, 0.0f);
  for (int row = 0; row < rows; row += kTileRows) {
    const int count = std::min(kTileRows, rows - row);
    const int common_begin = *std::max_element(s.begin + row, s.begin + row + count);
    const int common_end = std::max(common_begin, *std::min_element(s.end + row, s.end + row + count));
    for (int r = row; r < row + count; ++r) add(r, 1, s.begin[r], std::min(s.end[r], common_begin));
    add(row, count, common_begin, common_end);
    for (int r = row; r < row + count; ++r) add(r, 1, std::max(s.begin[r], common_end), s.end[r]);
  }
}

void MergeTile(int row, int dim, AttentionScratch& s) {
  const float max = std::max(s.max[row], s.tile_max[row]);
  const float keep = s.max[row] == kNothing ? 0.0f : ExpOne(s.max[row] - max), take = ExpOne(s.tile_max[row] - max);
  s.sum[row] = s.sum[row] * keep + s.tile_sum[row] * take;
  s.max[row] = max;
  ForChunks(dim, [&](int64_t d, int) {
    const int64_t at = (d / kPanelColumns * kAttentionRows + row) * kPanelColumns + d % kPanelColumns;
    Store(s.out + at, Fma(Load(s.tile + at), Set(take), Mul(Load(s.out + at), Set(keep))));
  });
}

void LoadQueries(const AttentionItem& item, AttentionScratch& s) {
  const int dim = item.k->dim, rows = item.rows * item.heads;
  for (int i = 0; i < rows; ++i) {
    const char* from = static_cast<const char*>(item.q) + (i / item.heads) * item.q_row_bytes;
    WithType(static_cast<const void*>(from), item.dtype, [&](const auto* q) {
      const auto* head = q + (i % item.heads) * dim;
      ForChunks(dim, [&](int64_t d, int n) { Store(s.q + i * kMaxHeadDim + d, Mul(LoadAs(head + d, n), Set(item.scale)), n); });
    });
    const float* sink = item.sinks != nullptr ? item.sinks + i % item.heads : nullptr;
    s.max[i] = sink != nullptr ? *sink : kNothing;
    s.sum[i] = sink != nullptr ? 1.0f : 0.0f;
  }
  for (int d = 0; d * kPanelColumns < dim; ++d) std::fill_n(s.out + d * kAttentionRows * kPanelColumns, rows * kPanelColumns, 0.0f);
}

void StoreResults(const AttentionItem& item, const AttentionScratch& s) {
  const int dim = item.k->dim, rows = item.rows * item.heads;
  for (int i = 0; i < rows; ++i) {
    char* to = static_cast<char*>(item.out) + (i / item.heads) * item.out_row_bytes;
    const Vec inverse = Set(item.v_scale / s.sum[i]);
    WithType(static_cast<void*>(to), item.dtype, [&](auto* out) {
      auto* head = out + (i % item.heads) * dim;
      ForChunks(dim, [&](int64_t d, int n) {
        const float* from = s.out + (d / kPanelColumns * kAttentionRows + i) * kPanelColumns + d % kPanelColumns;
        StoreAs(head + d, Mul(Load(from), inverse), n);
      });
    });
  }
}

template <class T>
void AttendTyped(const AttentionItem& item, AttentionScratch& s) {
  const int dim = item.k->dim, rows = item.rows * item.heads;
  LoadQueries(item, s);
  const int32_t first = item.window > 0 ? std::max(0, item.first_position - item.window + 1) : 0;
  const int32_t last = item.first_position + item.rows - 1;
  for (int32_t tile = first / kAttentionTile * kAttentionTile; tile <= last; tile += kAttentionTile) {
    int begin, end;
    if (!SetRanges(item, tile, s.begin, s.end, &begin, &end)) continue;
    s.vectors.Set<T>(*item.k, item.blocks, last + 1, tile, begin, end, item.kv_head);
    LoadKeys<T>(s.vectors, dim, begin, end, s.k);
    s.vectors.Set<T>(*item.v, item.blocks, last + 1, tile, begin, end, item.kv_head);
    LoadValues<T>(s.vectors, dim, begin, end, s.v);
    ScoreTile(rows, dim, begin, end, s);
    for (int i = 0; i < rows; ++i) {
      if (s.begin[i] < s.end[i]) SoftmaxRow(i, item.softcap, s);
    }
    AddValues(rows, dim, s);
    for (int i = 0; i < rows; ++i) {
      if (s.begin[i] < s.end[i]) MergeTile(i, dim, s);
    }
  }
  StoreResults(item, s);
}

void Attend(const AttentionItem& item) {
  static thread_local const std::unique_ptr<AttentionScratch> scratch = std::make_unique<AttentionScratch>();
  if (item.k->dtype == DType::kF32) AttendTyped<float>(item, *scratch);
  else if (item.k->dtype == DType::kBF16) AttendTyped<Bf16>(item, *scratch);
  else if (item.k->dtype == DType::kF16) AttendTyped<F16>(item, *scratch);
  else AttendTyped<E4m3>(item, *scratch);
}

}  // namespace
