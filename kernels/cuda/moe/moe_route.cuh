// MoE routing: the k best experts of every token with their weights. Ties go to the lower expert.
//
// Floor per token of E experts (f32 logits): read 4E, write 8k bytes, (4 + k)·E FLOP; 256 tokens: launch-bound.
#pragma once

#include "kernels/cuda/moe/moe_limits.h"
#include "kernels/cuda/warp.cuh"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

struct MoeRouteParams {
  const float* logits;  ///< [tokens, experts]
  int64_t stride;
  int32_t* chosen;         ///< [tokens, k] best first
  float* weights;          ///< [tokens, k]: softmax over all experts, or over the chosen (renormalize)
  int tokens, experts, k;  ///< experts ≤ 256, k ≤ 16
  bool renormalize;
};

constexpr int kMoeRouteWarps = 4;

/// One warp per token; lane l holds experts l, l + 32, …
PX_KERNEL_INLINE void PX_BOUNDS(kMoeRouteWarps * 32) MoeRouteKernel(const PX_GRID_CONST MoeRouteParams p) {
  constexpr int kPerLane = kMaxExperts / 32;
  const int lane = px::Lane(), token = px::BlockX() * kMoeRouteWarps + px::WarpIndex();
  // NaN and −∞ count as the lowest number, so that every token has k different experts whatever it holds.
  constexpr float kNever = -__builtin_huge_valf(), kLowest = -3.402823466e38f, kLog2E = 1.4426950408889634f;
  px::GridDependencyWait();
  if (token >= p.tokens) return;
  float x[kPerLane], best = kNever;
  PX_UNROLL
  for (int j = 0; j < kPerLane; ++j) {
    const int e = j * 32 + lane;
    x[j] = e < p.experts ? px::Max(px::Load(p.logits + static_cast<int64_t>(token) * p.stride + e), kLowest) : kNever;
    best = px::Max(best, x[j]);
  }
  best = WarpMax(best);
  float sum = 0.0f;
  PX_UNROLL
  for (int j = 0; j < kPerLane; ++j) sum = px::Add(sum, px::Exp2(px::Mul(x[j] - best, kLog2E)));
  sum = WarpSum(sum);
  float chosen_sum = 0.0f, mine = 0.0f;  // lane c keeps choice c
  int my_expert = 0;
  for (int c = 0; c < p.k; ++c) {
    float top = kNever;
    int expert = kMaxExperts;
    PX_UNROLL
    for (int j = 0; j < kPerLane; ++j)
      if (j * 32 + lane < p.experts && x[j] > top) top = x[j], expert = j * 32 + lane;
    PX_UNROLL
    for (int m = 16; m > 0; m /= 2) {
      const float other = px::ShuffleXor(top, m);
      const int other_expert = px::ShuffleXor(expert, m);
      if (other > top || (other == top && other_expert < expert)) {
        top = other;
        expert = other_expert;
      }
    }
    PX_UNROLL
    for (int j = 0; j < kPerLane; ++j)
      if (j * 32 + lane == expert) x[j] = kNever;
    const float share = px::Exp2(px::Mul(top - best, kLog2E));
    chosen_sum = px::Add(chosen_sum, share);
    if (lane == c) {
      mine = share;
      my_expert = expert;
    }
  }
  if (lane < p.k) {
    px::Store(p.chosen + static_cast<int64_t>(token) * p.k + lane, my_expert);
    px::Store(p.weights + static_cast<int64_t>(token) * p.k + lane, mine / (p.renormalize ? chosen_sum : sum));
  }
  px::GridDependencyRelease();
}

inline void LaunchMoeRoute(gpu::Stream& stream, const MoeRouteParams& p, bool programmatic = false) {
  if (p.tokens == 0) return;
  gpu::Launch(stream,
              {.grid = {static_cast<unsigned>((p.tokens + kMoeRouteWarps - 1) / kMoeRouteWarps)},
               .block = {kMoeRouteWarps * 32},
               .programmatic = programmatic},
              &MoeRouteKernel, p);
}

}  // namespace baton::cuda
