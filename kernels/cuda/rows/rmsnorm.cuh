// RMSNorm, with the residual add before it: residual += x; out = residual / sqrt(mean(residual²) + eps) · (weight +
// offset).
//
// Floor per row of n (residual f32, x and out bf16): read 4n + 2n, write 4n + 2n = 12n bytes; ~6n FLOP. Without x: 6n
// bytes. H200 at 4.3 TB/s: 16,384 × 4096 with residual 187 µs. One block per row; the row stays in registers; sums in
// fixed order.
#pragma once

#include "kernels/cuda/warp.cuh"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

template <typename In, typename Out>
struct RmsNormParams {
  const In* x;                                    ///< [rows, n], null: normalize the residual as it is
  float* residual;                                ///< [rows, n], 16-byte aligned rows; updated when x is given
  const float* weight;                            ///< [n]
  Out* out;                                       ///< [rows, n]; e4m3: divided by out_scale
  int64_t x_stride, residual_stride, out_stride;  ///< elements between rows
  int rows, n;                                    ///< n a multiple of 8
  float eps, weight_offset;
  float out_inverse_scale;  ///< 1 unless Out is e4m3
};

constexpr int kNormThreads = 256;
constexpr int kNormWarps = kNormThreads / 32;

struct NormShared {
  float partial[kNormWarps];
};
static_assert(sizeof(NormShared) == 4 * kNormWarps);

/// kVectors: 4-element vectors per thread; covers n ≤ kNormThreads · 4 · kVectors. With four of them the compiler, left
/// to itself, spills to have eight blocks per SM.
template <typename In, typename Out, int kVectors>
PX_KERNEL void PX_BOUNDS(kNormThreads, kVectors == 4 ? 6 : 0)
    RmsNormKernel(const PX_GRID_CONST RmsNormParams<In, Out> p) {
  PX_SHARED(NormShared, smem);
  const int row = px::BlockX(), t = px::ThreadX();
  float* residual = p.residual + row * p.residual_stride;
  float values[kVectors][4], squares = 0.0f;
  px::GridDependencyWait();
  PX_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    const int c = (i * kNormThreads + t) * 4;
    if (c >= p.n) continue;
    LoadVector(residual + c, values[i]);
    if (p.x != nullptr) {
      const In* x = p.x + row * p.x_stride + c;
      float add[4];
      LoadFour(x, add);
      PX_UNROLL
      for (int k = 0; k < 4; ++k) values[i][k] = px::Add(values[i][k], add[k]);
      StoreVector(residual + c, values[i]);
    }
    PX_UNROLL
    for (int k = 0; k < 4; ++k) squares = px::Fma(values[i][k], values[i][k], squares);
  }
  const float mean = px::Mul(BlockSum<kNormWarps>(squares, smem.partial), 1.0f / static_cast<float>(p.n));
  const float scale = px::Mul(px::Rsqrt(mean + p.eps), p.out_inverse_scale);
  px::GridDependencyRelease();
  PX_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    const int c = (i * kNormThreads + t) * 4;
    if (c >= p.n) continue;
    float w[4];
    LoadVector(p.weight + c, w);
    PX_UNROLL
    for (int k = 0; k < 4; ++k) w[k] = px::Mul(px::Mul(values[i][k], scale), w[k] + p.weight_offset);
    StoreVector(p.out + row * p.out_stride + c, w);
  }
}

/// Enqueues; rows = 0 is nothing. n ≤ 16,384.
template <typename In, typename Out>
void LaunchRmsNorm(gpu::Stream& stream, const RmsNormParams<In, Out>& p, bool programmatic = false) {
  if (p.rows == 0) return;
  gpu::LaunchConfig config{.grid = {static_cast<unsigned>(p.rows)},
                           .block = {kNormThreads},
                           .shared_bytes = sizeof(NormShared),
                           .programmatic = programmatic};
  const int vectors = (p.n + kNormThreads * 4 - 1) / (kNormThreads * 4);
  if (vectors <= 1)
    gpu::Launch(stream, config, &RmsNormKernel<In, Out, 1>, p);
  else if (vectors <= 4)
    gpu::Launch(stream, config, &RmsNormKernel<In, Out, 4>, p);
  else
    gpu::Launch(stream, config, &RmsNormKernel<In, Out, 16>, p);
}

}  // namespace baton::cuda
