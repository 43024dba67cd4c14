// Rows times a packed panel of 64 columns. Every output is one chain of fused multiply-adds over k = 0 … K - 1, started at
// zero, with the bias added last: its bits depend on the row and the weight alone, not on how many rows are computed.
//
// K is walked in blocks, so a block of the panel stays in the nearest cache while every row uses it; between blocks the
// accumulators rest in memory as f32, which changes no bit. Weights stay in their storage type (bf16 and f16 expand
// exactly), so decode reads half the bytes of f32; with many rows a block is expanded once.

namespace {

using baton::kernels::cpu::kLinearRows;
using baton::kernels::cpu::kPanelColumns;

#if defined(__AVX512F__)
constexpr int kTileRows = 6, kTileRegs = 4;  // 24 accumulators of 32 registers
#else
constexpr int kTileRows = 6, kTileRegs = 2;  // 12 accumulators of 16 registers
#endif
constexpr int kTileColumns = kTileRegs * kNativeLanes;
constexpr int kDepth = 128;       // k per block
constexpr int kExpandFrom = 13;   // rows from which expanding a 16-bit block pays

/// sums[r][0, kTileColumns) += x[r][0, depth) · w[depth][kPanelColumns], one fused multiply-add at a time.
template <class W, int kRows>
inline void Tile(const float* x, int64_t x_stride, const W* w, int depth, float* sums) {
  Reg acc[kRows][kTileRegs];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kTileRegs; ++c) acc[r][c] = RegLoad(sums + r * kPanelColumns + c * kNativeLanes);
  }
  for (int i = 0; i < depth; ++i) {
    Reg b[kTileRegs];
    for (int c = 0; c < kTileRegs; ++c) b[c] = RegLoadAs(w + i * kPanelColumns + c * kNativeLanes);
    for (int r = 0; r < kRows; ++r) {
      const Reg a = RegSet(x[r * x_stride + i]);
      for (int c = 0; c < kTileRegs; ++c) acc[r][c] = RegFma(a, b[c], acc[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kTileRegs; ++c) RegStore(sums + r * kPanelColumns + c * kNativeLanes, acc[r][c]);
  }
}

template <class W>
inline void TileOf(int rows, const float* x, int64_t x_stride, const W* w, int depth, float* sums) {
  switch (rows) {
    case 1: return Tile<W, 1>(x, x_stride, w, depth, sums);
    case 2: return Tile<W, 2>(x, x_stride, w, depth, sums);
    case 3: return Tile<W, 3>(x, x_stride, w, depth, sums);
    case 4: return Tile<W, 4>(x, x_stride, w, depth, sums);
    case 5: return Tile<W, 5>(x, x_stride, w, depth, sums);
    default: return Tile<W, 6>(x, x_stride, w, depth, sums);
  }
}

template <class W>
inline void Block(const float* x, int64_t x_stride, int rows, const W* w, int depth, int columns, float* sums) {
  for (int c = 0; c < columns; c += kTileColumns) {
    for (int r = 0; r < rows; r += kTileRows) {
      TileOf(rows - r, x + r * x_stride, x_stride, w + c, depth, sums + r * kPanelColumns + c);
    }
  }
}

template <class W>
void PanelSums(const float* x, int64_t x_stride, int rows, const W* panel, int64_t k, int columns, float* sums) {
  alignas(64) float expanded[std::is_same_v<W, float> ? 16 : kDepth * kPanelColumns];
  for (int64_t i = 0; i < k; i += kDepth) {
    const int depth = static_cast<int>(k - i < kDepth ? k - i : kDepth);
    const W* w = panel + i * kPanelColumns;
    if constexpr (!std::is_same_v<W, float>) {
      if (rows >= kExpandFrom) {
        for (int j = 0; j < depth * kPanelColumns; j += kNativeLanes) RegStore(expanded + j, RegLoadAs(w + j));
        Block(x + i, x_stride, rows, expanded, depth, columns, sums);
        continue;
      }
    }
    Block(x + i, x_stride, rows, w, depth, columns, sums);
  }
}

void LinearPanel(const float* x, int64_t x_stride, int rows, const void* panel, DType weight_dtype, int64_t k,
                 const float* bias, int columns, void* out, DType out_dtype, int64_t out_stride) {
  alignas(64) float sums[kLinearRows * kPanelColumns];
  std::fill_n(sums, rows * kPanelColumns, 0.0f);
  WithType(panel, weight_dtype, [&](const auto* w) { PanelSums(x, x_stride, rows, w, k, columns, sums); });
  WithType(out, out_dtype, [&](auto* to) {
    for (int r = 0; r < rows; ++r) {
      const float* line = sums + r * kPanelColumns;
      ForChunks(columns, [&](int64_t i, int n) {
        const Vec y = bias != nullptr ? Add(Load(line + i), Load(bias + i)) : Load(line + i);
        if (n == 16) StoreAs(to + r * out_stride + i, y);
        else StoreAs(to + r * out_stride + i, y, n);
      });
    }
  });
}

}  // namespace
