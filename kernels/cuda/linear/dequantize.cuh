// Outputs of a weight in codes as the bf16 rows that gemm.cuh and gemm_wgmma.cuh read: with many rows of x one pass of
// this and a dense GEMM cost less than codes that every tile of rows converts anew. The same values as in
// gemm_quant.cuh's registers, so a row's bits are the same.
//
// Floor: N·K·(2 + bits/8) bytes and 4·N·K/group of scales: 4,096² e4m3 50 MB, 12 µs at 4.3 TB/s. A GEMM of 2,048 rows
// over it is 69 GFLOP, 87 µs at 790 TFLOP/s.
#pragma once

#include "kernels/cuda/linear/gemm_quant.cuh"
#include "kernels/cuda/row_grid.cuh"

namespace baton::cuda {

struct DequantizeParams {
  const px::U128* w;      ///< as QuantGemmParams::w, from output 0
  const QuantMeta* meta;  ///< as QuantGemmParams::meta
  px::bf16* out;          ///< [outputs, k rounded up to kGemmPadK], zero beyond n and k
  int first, outputs;     ///< from output `first`, both multiples of 16; beyond n they are zero
  int n, k, group;        ///< of the weight
};

/// A warp takes 16 outputs of a K step.
template <WeightFormat kFormat>
PX_KERNEL void PX_BOUNDS(kRowOpThreads) DequantizeKernel(const PX_GRID_CONST DequantizeParams p) {
  const int steps = QuantSteps(p.k), groups = QuantGroups(p.k, p.group), lane = px::Lane();
  const int64_t tile = RowOpIndex() / 32;
  px::GridDependencyWait();
  if (tile >= static_cast<int64_t>(p.outputs / 16) * steps) return;
  const int step = static_cast<int>(tile % steps);
  const int64_t block = p.first / 16 + tile / steps, stride = static_cast<int64_t>(steps) * kGemmStepK;
  const bool kept = block * 16 < p.n;
  px::U128 words[QuantWords(kFormat)] = {};
  if (kept) {
    PX_UNROLL
    for (int i = 0; i < QuantWords(kFormat); ++i)
      words[i] = px::Load(p.w + ((block * steps + step) * QuantWords(kFormat) + i) * 32 + lane);
  }
  px::bf16* const out = p.out + (tile / steps * 16 + lane / 4) * stride + step * kGemmStepK + lane % 4 * 2;
  PX_UNROLL
  for (int kk = 0; kk < kGemmStepK / 16; ++kk) {
    QuantMeta meta{0, 0};
    if (kept) {
      const int g = p.group == 32 ? step * 2 + kk / 2 : step * kGemmStepK / p.group;
      meta = px::Load(p.meta + (block * groups + g) * 8 + lane / 4);
    }
    uint32_t b[4];
    DequantizeFragment<kFormat>(words, kk, meta, b);
    PX_UNROLL
    for (int i = 0; i < 4; ++i) {  // columns n, n, n + 8, n + 8; k, k + 8, k, k + 8
      const int k = step * kGemmStepK + kk * 16 + lane % 4 * 2 + i % 2 * 8;
      px::Store(reinterpret_cast<uint32_t*>(out + i / 2 * 8 * stride + kk * 16 + i % 2 * 8), k < p.k ? b[i] : 0u);
    }
  }
}

template <WeightFormat kFormat>
void LaunchDequantize(gpu::Stream& stream, const DequantizeParams& p) {
  if (p.outputs == 0) return;
  const int64_t threads = static_cast<int64_t>(p.outputs / 16) * QuantSteps(p.k) * 32;
  gpu::Launch(stream, {.grid = {RowOpBlocks(threads)}, .block = {kRowOpThreads}}, &DequantizeKernel<kFormat>, p);
}

}  // namespace baton::cuda
