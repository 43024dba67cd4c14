// out = the sum of the ranks' vectors, as one binary tree in rank order (engine/parallel/tree_sum.h): the last step of
// a sum over ranks, whose bits are those of one rank that adds the same parts.
//
// Floor per element: read 4 bytes of each rank, write 4; ranks − 1 FLOP. 2 ranks, 32 × 4096: 1.6 MB, 0.4 µs at 4.3
// TB/s.
#pragma once

#include "kernels/cuda/row_grid.cuh"
#include "kernels/cuda/warp.cuh"

namespace baton::cuda {

constexpr int kMostTreeRanks = 64;

struct TreeSumParams {
  const float* parts;  ///< [ranks, part_stride]
  float* out;          ///< [n]; may be one of the parts
  int64_t part_stride, n;
};

/// Four elements of the tree over parts [first, first + kParts).
template <int kParts>
PX_DEVICE void TreeOf(const TreeSumParams& p, int first, int64_t at, float (&sum)[4]) {
  if constexpr (kParts == 1) {
    LoadVector(p.parts + first * p.part_stride + at, sum);
  } else {
    float right[4];
    TreeOf<kParts / 2>(p, first, at, sum);
    TreeOf<kParts / 2>(p, first + kParts / 2, at, right);
    PX_UNROLL
    for (int k = 0; k < 4; ++k) sum[k] = px::Add(sum[k], right[k]);
  }
}

/// n and part_stride are multiples of 4, out and parts aligned to 16 bytes.
template <int kRanks>
PX_KERNEL void PX_BOUNDS(kRowOpThreads) TreeSumKernel(const PX_GRID_CONST TreeSumParams p) {
  const int64_t at = RowOpIndex() * 4;
  px::GridDependencyWait();
  if (at < p.n) {
    float sum[4];
    TreeOf<kRanks>(p, 0, at, sum);
    StoreVector(p.out + at, sum);
  }
  px::GridDependencyRelease();
}
/// `ranks`: a power of two of at most kMostTreeRanks.
inline void LaunchTreeSum(gpu::Stream& stream, const TreeSumParams& p, int ranks) {
  if (p.n == 0) return;
  const gpu::LaunchConfig config{.grid = {RowOpBlocks(p.n / 4)}, .block = {kRowOpThreads}};
  switch (ranks) {
    case 1: return gpu::Launch(stream, config, &TreeSumKernel<1>, p);
    case 2: return gpu::Launch(stream, config, &TreeSumKernel<2>, p);
    case 4: return gpu::Launch(stream, config, &TreeSumKernel<4>, p);
    case 8: return gpu::Launch(stream, config, &TreeSumKernel<8>, p);
    case 16: return gpu::Launch(stream, config, &TreeSumKernel<16>, p);
    case 32: return gpu::Launch(stream, config, &TreeSumKernel<32>, p);
    default: return gpu::Launch(stream, config, &TreeSumKernel<kMostTreeRanks>, p);
  }
}

}  // namespace baton::cuda
