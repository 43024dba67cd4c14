// Packed rows times a packed panel of 32 columns (kernels/cpu/bf16_panels.h) in tiles. A row's bits depend on the row
// and the panel alone: one chain of tile products over k.

namespace {

/// Rows [first, first + rows), rows ≤ 32, times the panel at `column`.
template <bool kTwoLeft>
void LinearAmxBlock(const Bf16LinearItem& item, int64_t first, int rows, int64_t column) {
  alignas(64) float sums[2 * kTileSide * kBf16PanelColumns];
  const int64_t run_bytes = int64_t{item.steps} * kTileBytes;
  const char* left = static_cast<const char*>(item.left) + first / kTileSide * run_bytes;
  const char* panel = static_cast<const char*>(item.panels) + column / kBf16PanelColumns * 2 * run_bytes;
  MultiplyTiles<kTwoLeft, true>({left, kTileBytes, item.left_ahead}, left + run_bytes,
                                {panel, 2 * kTileBytes, item.right_ahead}, panel + kTileBytes, item.steps);
  StoreTiles<kTwoLeft, true>(sums, kBf16PanelColumns);
  auto store = [&](auto* out) {
    for (int r = 0; r < rows; ++r) StoreColumns(item, sums + r * kBf16PanelColumns, first + r, column, out);
  };
  if (item.out_dtype == DType::kBF16)
    store(static_cast<Bf16*>(item.out));
  else
    store(static_cast<float*>(item.out));
}

/// Row blocks outermost: a block's left tiles stay in the nearest cache while the panels pass.
void LinearAmx(const Bf16LinearItem& item) {
  constexpr int kBlock = 2 * kTileSide;
  const int whole = item.rows / kBlock * kBlock, rest = item.rows - whole;
  if (whole > 0) {
    const TileRegisters registers(kTileSide, kTileSide);
    for (int r = 0; r < whole; r += kBlock) {
      for (int64_t c = 0; c < item.columns; c += kBf16PanelColumns) LinearAmxBlock<true>(item, r, kBlock, c);
    }
  }
  if (rest == 0) return;
  const TileRegisters registers(std::min(rest, kTileSide), rest > kTileSide ? rest - kTileSide : kTileSide);
  for (int64_t c = 0; c < item.columns; c += kBf16PanelColumns) {
    if (rest > kTileSide)
      LinearAmxBlock<true>(item, whole, rest, c);
    else
      LinearAmxBlock<false>(item, whole, rest, c);
  }
}

}  // namespace
