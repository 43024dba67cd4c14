// Merges two attention results over disjoint tokens by their log-sum-exp: a shared prefix attended once for up to 32
// rows of several sequences (decode kernel, one sequence whose tree mask hides nothing), the rest per sequence.
//
// Floor per (row, head) of d: read 2·2d + 8, write 2d + 4 bytes (bf16); 4d FLOP. Sinks belong to one of the two only.
#pragma once

#include "kernels/cuda/warp.cuh"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

struct MergeStateParams {
  const px::bf16* prefix;   ///< [rows, heads, head_dim]
  const float* prefix_lse;  ///< [rows, heads], −∞: nothing was visible
  const px::bf16* suffix;
  const float* suffix_lse;
  px::bf16* out;              ///< may be prefix or suffix
  float* out_lse;             ///< or null; may be an input
  int rows, heads, head_dim;  ///< head_dim even
};

constexpr int kMergeStateThreads = 128;

PX_KERNEL_INLINE void PX_BOUNDS(kMergeStateThreads) MergeStateKernel(const PX_GRID_CONST MergeStateParams p) {
  constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
  constexpr float kNothing = -__builtin_huge_valf();
  const int n = px::BlockX() * (kMergeStateThreads / 32) + px::WarpIndex();
  px::GridDependencyWait();
  if (n >= p.rows * p.heads) return;
  const float a = px::Mul(px::Load(p.prefix_lse + n), kLog2E), b = px::Mul(px::Load(p.suffix_lse + n), kLog2E);
  const float m = px::Max(a, b);
  const float wa = m == kNothing ? 0.0f : px::Exp2(a - m), wb = m == kNothing ? 0.0f : px::Exp2(b - m);
  const float sum = wa + wb, inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
  for (int i = px::Lane(); i < p.head_dim / 2; i += 32) {
    const int64_t at = static_cast<int64_t>(n) * p.head_dim / 2 + i;
    const px::F2 x = px::UnpackBf16(px::Load(reinterpret_cast<const uint32_t*>(p.prefix) + at));
    const px::F2 y = px::UnpackBf16(px::Load(reinterpret_cast<const uint32_t*>(p.suffix) + at));
    px::Store(reinterpret_cast<uint32_t*>(p.out) + at,
              px::PackBf16(px::Mul(px::Fma(x.x, wa, px::Mul(y.x, wb)), inverse),
                           px::Mul(px::Fma(x.y, wa, px::Mul(y.y, wb)), inverse)));
  }
  px::SyncWarp();  // every lane has read both sums before one of them is replaced
  if (p.out_lse != nullptr && px::Lane() == 0)
    px::Store(p.out_lse + n, m == kNothing ? kNothing : px::Mul(m + px::Log2(sum), kLn2));
}

inline void LaunchMergeState(gpu::Stream& stream, const MergeStateParams& p, bool programmatic = false) {
  const int warps = kMergeStateThreads / 32, work = p.rows * p.heads;
  if (work == 0) return;
  gpu::Launch(stream,
              {.grid = {static_cast<unsigned>((work + warps - 1) / warps)},
               .block = {kMergeStateThreads},
               .programmatic = programmatic},
              &MergeStateKernel, p);
}

}  // namespace baton::cuda
