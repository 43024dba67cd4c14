// Packed rows times a packed panel of 32 columns (kernels/cpu/amx_panels.h). A row's bits depend on the row and the
// panel alone: one chain of tile products over k.

namespace {

using baton::kernels::cpu::kAmxPanelColumns;

/// Rows [first, first + rows) of x, rows ≤ 16, as left tiles: [steps][16][32] bf16, zero past k; the other rows stay as
/// they are.
void PackRowTile(const uint16_t* x, int64_t x_stride, int rows, int64_t k, void* to) {
  char* tile = static_cast<char*>(to);
  for (int64_t i = 0; i < k; i += kTileDepth, tile += kTileBytes) {
    const __mmask32 mask = k - i >= kTileDepth ? ~__mmask32{0} : (__mmask32{1} << (k - i)) - 1;
    for (int r = 0; r < rows; ++r)
      _mm512_storeu_si512(tile + r * 64, _mm512_maskz_loadu_epi16(mask, x + r * x_stride + i));
  }
}

/// Columns of a weight [16 or fewer rows of W][k] as right tiles: [steps] tiles, `step_bytes` apart, zero where nothing
/// is.
void PackColumnTile(const uint16_t* w, int64_t w_stride, int columns, int64_t k, void* to, int64_t step_bytes) {
  char* tile = static_cast<char*>(to);
  for (int64_t i = 0; i < k; i += kTileDepth, tile += step_bytes) {
    const __mmask32 mask = k - i >= kTileDepth ? ~__mmask32{0} : (__mmask32{1} << (k - i)) - 1;
    Vec block[16];
    for (int c = 0; c < 16; ++c)
      block[c] = c < columns ? Vec{_mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, w + c * w_stride + i))} : Zero();
    Transpose(block);  // 32-bit lanes: a pair of k each
    for (int p = 0; p < 16; ++p) Store(reinterpret_cast<float*>(tile) + p * 16, block[p]);
  }
}

/// Columns of `line` [32], with the bias, to row `r` of the item from column `c` on.
template <class T>
void StoreColumns(const AmxLinearItem& item, const float* line, int64_t r, int64_t c, T* out) {
  T* to = out + r * item.out_stride + c;
  const int columns = static_cast<int>(std::min<int64_t>(kAmxPanelColumns, item.columns - c));
  auto at = [&](int i) {
    const int n = std::clamp(columns - i, 0, 16);
    return item.bias != nullptr ? Add(Load(line + i), Load(item.bias + c + i, n)) : Load(line + i);
  };
  if constexpr (std::is_same_v<T, Bf16>) {
    _mm512_mask_storeu_epi16(to, columns == 32 ? ~__mmask32{0} : (__mmask32{1} << columns) - 1, ToBf16(at(0), at(16)));
  } else {
    StoreAs(to, at(0), std::min(columns, 16));
    if (columns > 16) StoreAs(to + 16, at(16), columns - 16);
  }
}

/// Rows [first, first + rows), rows ≤ 32, times the panel at `column`.
template <bool kTwoLeft>
void LinearAmxBlock(const AmxLinearItem& item, int64_t first, int rows, int64_t column) {
  alignas(64) float sums[2 * kTileSide * kAmxPanelColumns];
  const int64_t run_bytes = int64_t{item.steps} * kTileBytes;
  const char* left = static_cast<const char*>(item.left) + first / kTileSide * run_bytes;
  const char* panel = static_cast<const char*>(item.panels) + column / kAmxPanelColumns * 2 * run_bytes;
  MultiplyTiles<kTwoLeft, true>({left, kTileBytes, item.left_ahead}, left + run_bytes,
                                {panel, 2 * kTileBytes, item.right_ahead}, panel + kTileBytes, item.steps);
  StoreTiles<kTwoLeft, true>(sums, kAmxPanelColumns);
  auto store = [&](auto* out) {
    for (int r = 0; r < rows; ++r) StoreColumns(item, sums + r * kAmxPanelColumns, first + r, column, out);
  };
  if (item.out_dtype == DType::kBF16)
    store(static_cast<Bf16*>(item.out));
  else
    store(static_cast<float*>(item.out));
}

/// Row blocks outermost: a block's left tiles stay in the nearest cache while the panels pass.
void LinearAmx(const AmxLinearItem& item) {
  constexpr int kBlock = 2 * kTileSide;
  const int whole = item.rows / kBlock * kBlock, rest = item.rows - whole;
  if (whole > 0) {
    const TileRegisters registers(kTileSide, kTileSide);
    for (int r = 0; r < whole; r += kBlock) {
      for (int64_t c = 0; c < item.columns; c += kAmxPanelColumns) LinearAmxBlock<true>(item, r, kBlock, c);
    }
  }
  if (rest == 0) return;
  const TileRegisters registers(std::min(rest, kTileSide), rest > kTileSide ? rest - kTileSide : kTileSide);
  for (int64_t c = 0; c < item.columns; c += kAmxPanelColumns) {
    if (rest > kTileSide)
      LinearAmxBlock<true>(item, whole, rest, c);
    else
      LinearAmxBlock<false>(item, whole, rest, c);
  }
}

}  // namespace
