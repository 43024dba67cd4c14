// How a warp takes K and V from shared memory as operands of mma. bf16: ldmatrix. e4m3: the codes as they were copied,
// half of the bytes, which become bf16 in registers (exact).
//
// Every value stands in the product where a bf16 cache has it, so that both caches give the same bits, whatever order
// an architecture sums in. K: of a row's 16 codes ldmatrix would bring a lane four in a row; the product wants two, and
// two that are eight behind: a lane loads its pairs itself. V: of two tokens ldmatrix.trans brings a lane a pair of
// columns. The even columns of 16 are one product, the odd ones the other: which columns of o a lane holds differs.
//
// Of 16 columns from i · 16 on, of row h, the quad's lane c has in o[2 i][2 h], o[2 i][2 h + 1], o[2 i + 1][2 h],
// o[2 i + 1][2 h + 1]
//   bf16: columns 2 c, 2 c + 1, 2 c + 8, 2 c + 9
//   e4m3: columns 4 c, 4 c + 2, 4 c + 1, 4 c + 3
#pragma once

#include "kernels/cuda/tile_layout.cuh"

namespace baton::cuda {

/// Columns 16 d … 16 d + 15 of tokens 16 n … 16 n + 15: b[0], b[1] of the first eight tokens, b[2], b[3] of the others.
template <typename Layout>
PX_DEVICE void LoadKeys(uint32_t (&b)[4], const px::bf16* k, int n, int d) {
  const int lane = px::Lane(), row = (lane & 7) + ((lane >> 4) << 3), chunk = (lane >> 3) & 1;
  px::LdMatrixX4(b, k + Layout::Offset(n * 16 + row, 2 * d + chunk));
}
template <typename Layout>
PX_DEVICE void LoadKeys(uint32_t (&b)[4], const px::e4m3* k, int n, int d) {
  const int lane = px::Lane();
  PX_UNROLL
  for (int eight = 0; eight < 2; ++eight) {
    const px::e4m3* own = k + Layout::Offset(n * 16 + eight * 8 + lane / 4, d) + (lane & 3) * 2;
    PX_UNROLL
    for (int i = 0; i < 2; ++i)
      b[2 * eight + i] = px::E4m3ToBf16(px::LoadShared(reinterpret_cast<const uint16_t*>(own + i * 8)));
  }
}

/// Groups of 16 columns that one ldmatrix brings of 16 tokens.
template <typename Kv>
constexpr int kValueGroups = sizeof(Kv) == 1 ? 2 : 1;

/// Tokens 16 n … 16 n + 15 of column groups `group`, …: b[i][0], b[i][1] for o[2 i], b[i][2], b[i][3] for o[2 i + 1].
template <typename Layout>
PX_DEVICE void LoadValues(uint32_t (&b)[1][4], const px::bf16* v, int n, int group, int lane) {
  px::LdMatrixX4Trans(b[0], v + Layout::Offset(n * 16 + (lane & 15), 2 * group + (lane >> 4)));
}
template <typename Layout, int kAtOnce>
PX_DEVICE void LoadValues(uint32_t (&b)[kAtOnce][4], const px::e4m3* v, int n, int group, int lane) {
  static_assert(kAtOnce <= kValueGroups<px::e4m3>);
  uint32_t pairs[4];  // one group alone comes twice
  px::LdMatrixX4Trans(pairs, v + Layout::Offset(n * 16 + (lane & 15), group + (kAtOnce == 1 ? 0 : lane >> 4)));
  PX_UNROLL
  for (int i = 0; i < kAtOnce; ++i) {
    PX_UNROLL
    for (int eight = 0; eight < 2; ++eight) {
      // Column, column + 1 of a token, then of the next: the tokens of the even column, then those of the odd.
      const uint32_t columns = px::BytePermute(pairs[2 * i + eight], 0, 0x3120);
      b[i][eight] = px::E4m3ToBf16(static_cast<uint16_t>(columns));
      b[i][2 + eight] = px::E4m3ToBf16(static_cast<uint16_t>(columns >> 16));
    }
  }
}

}  // namespace baton::cuda
