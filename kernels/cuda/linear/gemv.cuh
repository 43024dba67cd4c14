// A few rows against a weight: out[M, N] = in(x)[M, K] · w[N, K]ᵀ + bias for M ≤ 8, w in bf16 or in codes
// (W4A16, W8A16: quant_layout.h), with what stands behind it in a decoder: a store, an addition to the residual stream,
// or act(gate) · up. RMSNorm on the way in did not pay: every block of 64 threads did it again (6144 × 4096 on an H100:
// 31 us in place of 23 and a norm's 3 at M = 1, 74 in place of 31 at M = 8).
//
// mma with its operands exchanged: 16 rows of w are A, the rows of x are the columns of B. Every output is one f32
// accumulator that takes the same k16 products in the same order as gemm.cuh, so CudaOps takes either by M and a row
// keeps its bits (Promise A; conformance: MmaBf16_exchanged). No split-K.
// Floor in bytes: N·K·b of weights (b = 2; 1 + 4/group; ½ + 4/group), 2·M·K or 4·M·K in, 2·M·N … 8·M·N out. 4096² bf16
// at M = 1: 33.6 MB, 7.8 µs at 4.3 TB/s; 14,336 × 4096 int4 of group 128: 31.2 MB, 7.3 µs. 2·M·N·K FLOP never matter.
// One warp streams 16 outputs through a ring of its own, 20 to 24 KiB in flight, begun before the grid that makes x has
// ended; codes go to registers a step before they are multiplied (a first form of that took 31 us for 8192² int4 on an
// H200, 2026-11-27; one H100 took 54 without); x lies in shared memory as a whole, which bounds M·K: GemvFits.
// The bar in bf16 is 0.85 of the floor; dense layers take it with a gate alone, up to four rows (28,672 × 4096 on an
// H100, 2026-11-27: 0.84 and 0.82 at one row and two), the others are gemm_wgmma_narrow.cuh's.
// A model of 8B in int4 of group 128 reads 3.7 GB of codes and scales for one sequence, 1.24 ms at 3.0 TB/s, and a head
// of 1.05 GB, 0.29 at 3.66; the bar of 550 tokens/s leaves 0.29 ms for the rest of the step.
#pragma once

#include "kernels/cuda/linear/gemm_quant.cuh"
#include "kernels/cuda/rows/activation.cuh"

namespace baton::cuda {

enum class GemvStore : uint8_t {
  kBf16,
  kF32,
  kAddF32,  ///< out is the residual [m, n] f32: out += value
};

struct GemvParams {
  const px::bf16* x = nullptr;  ///< [m, k], rows 16-byte aligned
  int64_t x_stride = 0;
  const void* w = nullptr;          ///< as GemmParams::w or QuantGemmParams::w
  int64_t w_stride = 0;             ///< bf16
  const QuantMeta* meta = nullptr;  ///< quantized
  int group = 0;
  const int32_t* inputs = nullptr;  ///< quantized: [k] the column of x of input k, −1: none; null: k itself
  const float* bias = nullptr;      ///< [rows of w] or null
  void* out = nullptr;
  int64_t out_stride = 0;
  int m = 0, n = 0, k = 0;  ///< gated: w has 2n rows, gate then up (quantized: n a multiple of 16), k as the GEMM's
  GemvStore store = GemvStore::kBf16;  ///< gated: kBf16
  Gate gate = Gate::kSilu;             ///< gated
};

constexpr int kGemvMaxRows = 8;
constexpr int kGemvWarps = 2, kGemvThreads = kGemvWarps * 32;
/// Blocks per SM, more than shared memory allows: left to itself the compiler spills to have more.
template <WeightFormat kWeight>
constexpr int kGemvBlocksPerSm = kWeight == WeightFormat::kBf16 ? 16 : 8;
constexpr int kGemvCols = 16;  ///< outputs of a warp

/// One K step of 64 for 16 weight rows.
template <WeightFormat kWeight>
struct GemvTile {  // a lane reads only what it copied itself
  px::U128 words[QuantWords(kWeight)][32];
  px::U128 meta[2][32];  ///< of columns 2 · (lane / 8) and the next; the second when groups are 32 wide
};
template <>
struct GemvTile<WeightFormat::kBf16> {
  alignas(16) px::bf16 rows[kGemvCols * kGemmStepK];
};

template <WeightFormat kWeight, bool kGated>
struct GemvShared {
  static constexpr int kTiles = kGated ? 2 : 1;
  static constexpr int kStages = (kWeight == WeightFormat::kBf16   ? 12
                                  : kWeight == WeightFormat::kInt4 ? 16
                                                                   : 10) /
                                 kTiles;
  GemvTile<kWeight> ring[kGemvWarps][kStages][kTiles];
  // then x: [m, GemvPitch(k)] bf16
};

/// Elements between rows of x in shared memory: 8 rows of 16 bytes lie in different banks.
PX_BOTH int GemvPitch(int k) { return (k + kGemmStepK - 1) / kGemmStepK * kGemmStepK + 8; }
template <WeightFormat kWeight, bool kGated>
size_t GemvSharedBytes(int m, int k) {
  return sizeof(GemvShared<kWeight, kGated>) + static_cast<size_t>(m) * GemvPitch(k) * sizeof(px::bf16);
}
/// Whether x fits beside the ring; else take the GEMM.
inline bool GemvFits(int m, int k) {
  constexpr size_t kSharedLimit = 200 << 10;
  return m <= kGemvMaxRows && GemvSharedBytes<WeightFormat::kBf16, false>(m, k) <= kSharedLimit;
}

/// Starts the copies of one K step of 16 weight rows beginning at `row`.
template <WeightFormat kWeight>
PX_DEVICE void FetchGemvTile(GemvTile<kWeight>& tile, const GemvParams& p, int row, int step) {
  const int lane = px::Lane();
  if constexpr (kWeight == WeightFormat::kBf16) {
    const auto* w = static_cast<const px::bf16*>(p.w) + row * p.w_stride + step * kGemmStepK;
    PX_UNROLL
    for (int i = 0; i < kGemvCols * GemmLayout::kChunks / 32; ++i) {
      const int r = i * (32 / GemmLayout::kChunks) + lane / GemmLayout::kChunks, chunk = lane % GemmLayout::kChunks;
      px::CpAsync16(tile.rows + GemmLayout::Offset(r, chunk), w + r * p.w_stride + chunk * 8, true);
    }
  } else {
    constexpr int kWords = QuantWords(kWeight);
    const int64_t block = row / kGemvCols, steps = QuantSteps(p.k), groups = QuantGroups(p.k, p.group);
    const auto* w = static_cast<const px::U128*>(p.w) + (block * steps + step) * 32 * kWords + lane;
    PX_UNROLL
    for (int i = 0; i < kWords; ++i) px::CpAsync16(&tile.words[i][lane], w + i * 32, true);
    const QuantMeta* meta = p.meta + (block * groups + step * kGemmStepK / p.group) * 8 + lane / 8 * 2;
    px::CpAsync16(&tile.meta[0][lane], meta, true);
    if (p.group == 32) px::CpAsync16(&tile.meta[1][lane], meta + 8, true);
  }
}

/// A lane's part of a step, in registers: what its fragments are made of.
template <WeightFormat kWeight>
struct GemvSource {
  px::U128 words[QuantWords(kWeight)];
  QuantMeta meta[2];  ///< of the step's halves
  PX_DEVICE void Load(const GemvTile<kWeight>& tile, bool narrow_groups) {
    const int lane = px::Lane();
    const bool odd = lane / 4 % 2 != 0;
    const auto load = [&](int half) {
      const px::U128 pair = px::LoadShared(&tile.meta[half][lane]);
      return QuantMeta{odd ? pair.w[2] : pair.w[0], odd ? pair.w[3] : pair.w[1]};
    };
    PX_UNROLL
    for (int i = 0; i < QuantWords(kWeight); ++i) words[i] = px::LoadShared(&tile.words[i][lane]);
    meta[0] = load(0);
    meta[1] = narrow_groups ? load(1) : meta[0];
  }
  /// A fragment of k16 number kk. The layout is that of B: two tiles of 8 columns. As A they are rows 0 … 7 and 8 … 15.
  PX_DEVICE void Fragment(uint32_t (&a)[4], int kk) const {
    uint32_t b[4];
    if constexpr (kWeight == WeightFormat::kInt4) {
      Dequantize4(words[0].w[kk], meta[kk / 2], b);
    } else {
      const uint32_t low = words[kk / 2].w[kk % 2 * 2], high = words[kk / 2].w[kk % 2 * 2 + 1];
      if constexpr (kWeight == WeightFormat::kE4m3)
        DequantizeE4m3(low, high, meta[kk / 2], b);
      else
        Dequantize8(low, high, meta[kk / 2], b);
    }
    a[0] = b[0];
    a[1] = b[2];
    a[2] = b[1];
    a[3] = b[3];
  }
};
template <>
struct GemvSource<WeightFormat::kBf16> {
  const px::bf16* rows;
  PX_DEVICE void Load(const GemvTile<WeightFormat::kBf16>& tile, bool) { rows = tile.rows; }
  PX_DEVICE void Fragment(uint32_t (&a)[4], int kk) const {
    px::LdMatrixX4(a, rows + GemmLayout::Offset(px::Lane() % 16, kk * 2 + px::Lane() / 16));
  }
};

/// d += x · wᵀ of one step: `row` is this lane's row of x there.
template <WeightFormat kWeight, int kTiles>
PX_DEVICE void MultiplyGemvStep(float (&d)[kTiles][4], const GemvSource<kWeight> (&w)[kTiles], const px::bf16* row) {
  PX_UNROLL
  for (int pair = 0; pair < 2; ++pair) {
    uint32_t a[2][kTiles][4], b[4];
    PX_UNROLL
    for (int i = 0; i < 2 * kTiles; ++i) w[i % kTiles].Fragment(a[i / kTiles][i % kTiles], pair * 2 + i / kTiles);
    px::LdMatrixX4(b, row + pair * 32);
    PX_UNROLL
    for (int i = 0; i < 2 * kTiles; ++i)
      px::MmaBf16(d[i % kTiles], a[i / kTiles][i % kTiles], b[i / kTiles * 2], b[i / kTiles * 2 + 1]);
  }
}

/// x to shared memory, zeroes between k and the pitch's steps. All threads; the caller's barrier follows.
template <bool kQuantized>
PX_DEVICE void StageGemvRows(px::bf16* x, const GemvParams& p) {
  const int pitch = GemvPitch(p.k), chunks = (pitch - 8) / 8;
  for (int i = px::ThreadX(); i < p.m * chunks; i += kGemvThreads) {
    const int row = i / chunks, c = i % chunks * 8;
    const px::bf16* from = p.x + row * p.x_stride;
    px::U128 v{{0, 0, 0, 0}};
    if (kQuantized && p.inputs != nullptr) {
      PX_UNROLL
      for (int j = 0; j < 8; ++j) {
        const int column = c < p.k ? px::Load(p.inputs + c + j) : -1;
        if (column >= 0) v.w[j / 2] |= static_cast<uint32_t>(px::Load(from + column).bits) << (j % 2 * 16);
      }
    } else if (c < p.k) {
      v = px::Load(reinterpret_cast<const px::U128*>(from + c));
    }
    px::StoreShared(reinterpret_cast<px::U128*>(x + row * pitch + c), v);
  }
}

/// value at (row, col) of the outputs.
PX_DEVICE void StoreGemv(const GemvParams& p, int row, int col, float value) {
  const int64_t at = row * p.out_stride + col;
  float* wide = static_cast<float*>(p.out) + at;
  switch (p.store) {
    case GemvStore::kBf16: px::Store(static_cast<px::bf16*>(p.out) + at, px::FromFloat<px::bf16>(value)); return;
    case GemvStore::kF32: px::Store(wide, value); return;
    case GemvStore::kAddF32: px::Store(wide, px::Add(px::Load(wide), value)); return;
  }
}

template <bool kGated>
PX_DEVICE void FinishGemv(const GemvParams& p, const float (&d)[kGated ? 2 : 1][4], int col0) {
  const int lane = px::Lane();
  PX_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int col = col0 + lane / 4 + i / 2 * 8, row = lane % 4 * 2 + i % 2;
    if (row >= p.m || col >= p.n) continue;
    float value = d[0][i];
    if (p.bias != nullptr) value = px::Add(value, px::Load(p.bias + col));
    if constexpr (kGated) {
      float up = d[1][i];
      if (p.bias != nullptr) up = px::Add(up, px::Load(p.bias + p.n + col));
      value = px::ToFloat(px::FromFloat<px::bf16>(value));
      up = px::ToFloat(px::FromFloat<px::bf16>(up));
      value = px::Mul(p.gate == Gate::kSilu ? Activate<Gate::kSilu>(value) : Activate<Gate::kGeluTanh>(value), up);
    }
    StoreGemv(p, row, col, value);
  }
}

template <WeightFormat kWeight, bool kGated>
PX_KERNEL void PX_BOUNDS(kGemvThreads, kGemvBlocksPerSm<kWeight>) GemvKernel(const PX_GRID_CONST GemvParams p) {
  using Shared = GemvShared<kWeight, kGated>;
  constexpr int kTiles = Shared::kTiles, kStages = Shared::kStages;
  PX_SHARED(Shared, smem);
  auto* x = reinterpret_cast<px::bf16*>(&smem + 1);
  auto& ring = smem.ring[px::WarpIndex()];
  const int lane = px::Lane(), col0 = (px::BlockX() * kGemvWarps + px::WarpIndex()) * kGemvCols;
  const int steps = (p.k + kGemmStepK - 1) / kGemmStepK;
  const bool mine = col0 < p.n;  // the last block's second warp may have nothing to compute
  auto fetch = [&](int step) {
    if (mine && step < steps) {
      PX_UNROLL
      for (int tile = 0; tile < kTiles; ++tile)
        FetchGemvTile<kWeight>(ring[step % kStages][tile], p, col0 + tile * p.n, step);
    }
    px::CpAsyncCommit();
  };

  PX_UNROLL
  for (int s = 0; s < kStages - 1; ++s) fetch(s);  // weights are nobody's output: before the wait
  px::GridDependencyWait();
  constexpr bool kQuantized = kWeight != WeightFormat::kBf16;
  StageGemvRows<kQuantized>(x, p);
  px::SyncThreads();
  if (mine) {
    // Rows of x beyond m: the last one again. Their columns of D are not stored.
    const px::bf16* row = x + (lane % 8 < p.m ? lane % 8 : p.m - 1) * GemvPitch(p.k) + lane / 8 * 8;
    float d[kTiles][4] = {};
    GemvSource<kWeight> w[kTiles];
    const auto load = [&](int step) {
      PX_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) w[tile].Load(ring[step % kStages][tile], p.group == 32);
    };
    if constexpr (kQuantized) {
      px::CpAsyncWait<kStages - 2>();
      load(0);
    }
    for (int s = 0; s < steps; ++s) {
      if constexpr (kQuantized) {  // the next step's codes are on their way while this one's are multiplied
        GemvSource<kWeight> now[kTiles];
        PX_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) now[tile] = w[tile];
        fetch(s + kStages - 1);
        px::CpAsyncWait<kStages - 2>();
        if (s + 1 < steps) load(s + 1);
        MultiplyGemvStep(d, now, row + s * kGemmStepK);
      } else {
        px::CpAsyncWait<kStages - 2>();
        px::SyncWarp();  // for all lanes, and step s - 1 has been read
        fetch(s + kStages - 1);
        load(s);
        MultiplyGemvStep(d, w, row + s * kGemmStepK);
      }
    }
    FinishGemv<kGated>(p, d, col0);
  }
  px::GridDependencyRelease();
}

/// m ≤ kGemvMaxRows and GemvFits(m, k) are the caller's promise. m = 0 is nothing.
template <WeightFormat kWeight, bool kGated>
void LaunchGemv(gpu::Stream& stream, const GemvParams& p, bool programmatic) {
  if (p.m == 0 || p.n == 0) return;
  constexpr int kPerBlock = kGemvWarps * kGemvCols;
  gpu::Launch(stream,
              {.grid = {static_cast<unsigned>((p.n + kPerBlock - 1) / kPerBlock)},
               .block = {kGemvThreads},
               .shared_bytes = GemvSharedBytes<kWeight, kGated>(p.m, p.k),
               .programmatic = programmatic},
              &GemvKernel<kWeight, kGated>, p);
}

}  // namespace baton::cuda
