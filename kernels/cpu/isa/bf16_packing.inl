// Rows and weights as the bf16 products read them, and their sums as outputs (kernels/cpu/bf16_panels.h).

namespace {

using baton::kernels::cpu::kBf16PanelColumns;

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
void StoreColumns(const Bf16LinearItem& item, const float* line, int64_t r, int64_t c, T* out) {
  T* to = out + r * item.out_stride + c;
  const int columns = static_cast<int>(std::min<int64_t>(kBf16PanelColumns, item.columns - c));
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

}  // namespace
