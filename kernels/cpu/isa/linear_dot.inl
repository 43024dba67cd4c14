// Packed rows times packed panels of 32 columns (kernels/cpu/bf16_panels.h) with vdpbf16ps, where there are no tiles.
//
// Every output is one chain of pair products over k = 0 … K - 1, started at zero, with the bias added last: its bits
// depend on the row and the panel alone, not on how many rows or panels are computed at a time.

namespace {

constexpr int kDotRows = 6;    // with two panels 24 sums of 32 registers
constexpr int kPairs = 16;     // of k in a tile
constexpr int kDotPanels = 2;  // side by side

/// sums[kRows][kPanels · 32] = rows · panels. `left` and `panel`: the first tile of the first row and panel; panels lie
/// `panel_bytes` apart.
template <int kRows, int kPanels, bool kAhead>
inline void DotTile(const char* left, const char* panel, int64_t panel_bytes, int steps, int64_t ahead, float* sums) {
  constexpr int kRegs = 2 * kPanels;
  __m512 acc[kRows][kRegs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kRegs; ++v) acc[r][v] = _mm512_setzero_ps();
  }
  for (int s = 0; s < steps; ++s, left += kTileBytes, panel += 2 * kTileBytes) {
    for (int p = 0; p < kPairs; ++p) {
      __m512bh b[kRegs];
      for (int v = 0; v < kRegs; ++v) {
        const char* at = panel + v / 2 * panel_bytes + v % 2 * kTileBytes + p * 64;
        if constexpr (kAhead) _mm_prefetch(at + ahead, _MM_HINT_T0);
        b[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(at));
      }
      for (int r = 0; r < kRows; ++r) {
        int pair;
        std::memcpy(&pair, left + r * 64 + p * 4, sizeof(pair));
        const __m512bh a = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
        for (int v = 0; v < kRegs; ++v) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], a, b[v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kRegs; ++v) _mm512_storeu_ps(sums + (r * kRegs + v) * 16, acc[r][v]);
  }
}

template <int kPanels, bool kAhead>
inline void DotRows(int rows, const char* left, const char* panel, int64_t panel_bytes, int steps, int64_t ahead,
                    float* sums) {
  switch (rows) {
    case 1: return DotTile<1, kPanels, kAhead>(left, panel, panel_bytes, steps, ahead, sums);
    case 2: return DotTile<2, kPanels, kAhead>(left, panel, panel_bytes, steps, ahead, sums);
    case 3: return DotTile<3, kPanels, kAhead>(left, panel, panel_bytes, steps, ahead, sums);
    case 4: return DotTile<4, kPanels, kAhead>(left, panel, panel_bytes, steps, ahead, sums);
    case 5: return DotTile<5, kPanels, kAhead>(left, panel, panel_bytes, steps, ahead, sums);
    default: return DotTile<6, kPanels, kAhead>(left, panel, panel_bytes, steps, ahead, sums);
  }
}

/// All rows times kPanels panels from `column` on: the panels stay in a near cache while the rows pass.
template <int kPanels>
void DotPanels(const Bf16LinearItem& item, int64_t column) {
  alignas(64) float sums[kDotRows * kPanels * kBf16PanelColumns];
  const int64_t run_bytes = int64_t{item.steps} * kTileBytes, panel_bytes = 2 * run_bytes;
  const char* panel = static_cast<const char*>(item.panels) + column / kBf16PanelColumns * panel_bytes;
  for (int first = 0; first < item.rows;) {
    const int in_tile = first % kTileSide, rows = std::min({kDotRows, item.rows - first, kTileSide - in_tile});
    const char* left = static_cast<const char*>(item.left) + first / kTileSide * run_bytes + in_tile * 64;
    if (first == 0 && item.right_ahead > 0)
      DotRows<kPanels, true>(rows, left, panel, panel_bytes, item.steps, item.right_ahead, sums);
    else
      DotRows<kPanels, false>(rows, left, panel, panel_bytes, item.steps, 0, sums);
    auto store = [&](auto* out) {
      for (int r = 0; r < rows; ++r) {
        for (int p = 0; p < kPanels; ++p) {
          const int64_t c = column + p * kBf16PanelColumns;
          StoreColumns(item, sums + (r * kPanels + p) * kBf16PanelColumns, first + r, c, out);
        }
      }
    };
    if (item.out_dtype == DType::kBF16)
      store(static_cast<Bf16*>(item.out));
    else
      store(static_cast<float*>(item.out));
    first += rows;
  }
}

void LinearDot(const Bf16LinearItem& item) {
  int64_t c = 0;
  for (; c + kBf16PanelColumns < item.columns; c += kDotPanels * kBf16PanelColumns) DotPanels<kDotPanels>(item, c);
  if (c < item.columns) DotPanels<1>(item, c);
}

}  // namespace
