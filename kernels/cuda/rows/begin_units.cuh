// Zeroes the digests of the units whose first token this step writes: RoPE + KV write then only adds. For steps with
// several rows of a sequence; in others that kernel begins units itself (RopeKvParams::apart).
//
// Floor: reads 4 bytes per row, writes 16 per head of every 16th row; 0 FLOP. Launch-bound.
#pragma once

#include "kernels/cuda/row_grid.cuh"

namespace baton::cuda {

struct BeginUnitsParams {
  uint64_t *k_digests, *v_digests;  ///< [blocks, tokens_per_block / unit, heads]
  int64_t digest_block_stride;
  const int32_t* slots;  ///< [rows] block · tokens_per_block + offset
  int rows, heads, tokens_per_block, unit_tokens;
};
PX_KERNEL_INLINE void PX_BOUNDS(kRowOpThreads) BeginUnitsKernel(const PX_GRID_CONST BeginUnitsParams p) {
  const int64_t i = RowOpIndex();
  px::GridDependencyWait();
  if (i < static_cast<int64_t>(p.rows) * p.heads) {
    const int slot = px::Load(p.slots + i / p.heads), head = static_cast<int>(i % p.heads);
    const int offset = slot % p.tokens_per_block;
    if (slot >= 0 && offset % p.unit_tokens == 0) {
      const int64_t at = slot / p.tokens_per_block * p.digest_block_stride + offset / p.unit_tokens * p.heads + head;
      px::Store(p.k_digests + at, 0);
      px::Store(p.v_digests + at, 0);
    }
  }
  px::GridDependencyRelease();
}
inline void LaunchBeginUnits(gpu::Stream& stream, const BeginUnitsParams& p, bool programmatic = false) {
  if (p.rows == 0) return;
  gpu::Launch(stream, {.grid = {RowOpBlocks(static_cast<int64_t>(p.rows) * p.heads)}, .block = {kRowOpThreads}, .programmatic = programmatic},
              &BeginUnitsKernel, p);
}

}  // namespace baton::cuda
