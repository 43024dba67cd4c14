// Rows of bf16 as e4m3 with scales, for gemm_e4m3.cuh: by a token's largest input of a group, or by one number
// (quantized/input_rounding.h is the rule, to the bit).
//
// Floor per row of k: 2k bytes read, k written, 4 for each group: 2,048 rows of 4,096 25 MB, 5.9 µs at 4.3
// TB/s; 2 FLOP and a division an input. Rows are read twice, the second time from L1 or L2.
#pragma once

#include "kernels/cuda/warp.cuh"
#include "kernels/quantized/input_rounding.h"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

/// Codes of a row are zero from k up to a multiple of it.
constexpr int kRoundedPadK = 128;
PX_BOTH int64_t RoundedPitch(int64_t k) { return (k + kRoundedPadK - 1) / kRoundedPadK * kRoundedPadK; }

struct RoundInputsParams {
  const px::bf16* x;               ///< [rows, k], rows 16-byte aligned
  px::e4m3* out;                   ///< [rows, RoundedPitch(k)]
  float* scales;                   ///< [k / group, scale_stride] of each row
  int64_t x_stride, scale_stride;  ///< scale_stride ≥ rows
  int rows, k, group;              ///< k a multiple of 8 and of group; group 32, a multiple of 64, or k
  float fixed;                     ///< the scale of all; 0: by the largest
};

constexpr int kRoundThreads = 256, kRoundWarps = kRoundThreads / 32;
/// From here on a group is a block's, below a warp's.
constexpr int kRoundWideGroup = 1024;

struct RoundInputsShared {
  float largest[kRoundWarps];
};

/// Inputs that a warp or a block takes at once: a group, or four of 32.
PX_BOTH int RoundedSpan(int group) { return group == 32 ? kRoundedPadK : group; }

/// kWide: a block takes a span, else a warp.
template <bool kWide>
PX_KERNEL void PX_BOUNDS(kRoundThreads) RoundInputsKernel(const PX_GRID_CONST RoundInputsParams p) {
  PX_SHARED(RoundInputsShared, smem);
  constexpr int kStep = (kWide ? kRoundThreads : 32) * 4;
  const int span = RoundedSpan(p.group), spans = (p.k + span - 1) / span, t = kWide ? px::ThreadX() : px::Lane();
  const int64_t unit = kWide ? px::BlockX() : static_cast<int64_t>(px::BlockX()) * kRoundWarps + px::WarpIndex();
  px::GridDependencyWait();
  if (unit >= static_cast<int64_t>(p.rows) * spans) return;  // the whole warp, and of kWide nobody
  const int64_t row = unit / spans;
  const int first = static_cast<int>(unit % spans) * span, last = first + span < p.k ? first + span : p.k;
  const px::bf16* const x = p.x + row * p.x_stride;

  float scale = p.fixed;
  if (scale == 0.0f) {
    float largest = 0.0f;
    for (int c = first + t * 4; c < last; c += kStep) {
      float v[4];
      LoadFour(x + c, v);
      PX_UNROLL
      for (int i = 0; i < 4; ++i) largest = px::Max(largest, px::Max(v[i], -v[i]));
    }
    PX_UNROLL
    for (int m = 4; m > 0; m /= 2) largest = px::Max(largest, px::ShuffleXor(largest, m));  // 32 inputs
    if (p.group != 32) {
      largest = px::Max(largest, px::ShuffleXor(largest, 8));
      largest = px::Max(largest, px::ShuffleXor(largest, 16));
    }
    if constexpr (kWide) {
      if (px::Lane() == 0) px::StoreShared(smem.largest + px::WarpIndex(), largest);
      px::SyncThreads();
      PX_UNROLL
      for (int w = 0; w < kRoundWarps; ++w) largest = px::Max(largest, px::LoadShared(smem.largest + w));
    }
    scale = px::Div(px::Max(largest, kernels::kLeastLargestInput), kernels::kLargestE4m3);
  }
  const int mine = first + t * 4;
  if (t % (p.group == 32 ? 8 : kStep) == 0 && mine < last)
    px::Store(p.scales + mine / p.group * p.scale_stride + row, scale);

  const int64_t pitch = RoundedPitch(p.k);
  const int end = last == p.k ? static_cast<int>(pitch) : last;
  for (int base = first; base < end; base += kStep) {
    const int c = base + t * 4;
    float v[4] = {};
    if (c < last) LoadFour(x + c, v);
    PX_UNROLL
    for (int i = 0; i < 4; ++i) v[i] = px::Div(v[i], scale);
    const uint32_t word = PackE4m3Four(v[0], v[1], v[2], v[3]);
    if (c < end) px::Store(reinterpret_cast<uint32_t*>(p.out + row * pitch + c), word);
  }
  px::GridDependencyRelease();
}

/// Enqueues; rows = 0 is nothing.
inline void LaunchRoundInputs(gpu::Stream& stream, const RoundInputsParams& p, bool programmatic = false) {
  if (p.rows == 0) return;
  const int span = RoundedSpan(p.group);
  const int64_t spans = static_cast<int64_t>(p.rows) * ((p.k + span - 1) / span);
  gpu::LaunchConfig config{
      .block = {kRoundThreads}, .shared_bytes = sizeof(RoundInputsShared), .programmatic = programmatic};
  if (p.group >= kRoundWideGroup) {
    config.grid = {static_cast<unsigned>(spans)};
    return gpu::Launch(stream, config, &RoundInputsKernel<true>, p);
  }
  config.grid = {static_cast<unsigned>((spans + kRoundWarps - 1) / kRoundWarps)};
  gpu::Launch(stream, config, &RoundInputsKernel<false>, p);
}

}  // namespace baton::cuda
