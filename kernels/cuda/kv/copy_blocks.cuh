// Copies KV blocks and their digests onto other blocks of one plane: copy-on-write.
//
// Floor per byte of a block: read and written once; 0 FLOP. One block of 16 tokens, 8 heads of 128, bf16: 64 KiB moved,
// launch-bound.
#pragma once

#include "kernels/cuda/row_grid.cuh"

namespace baton::cuda {

struct CopyBlocksParams {
  unsigned char* plane;  ///< block b at plane + b · block_stride, 16-byte aligned
  int64_t block_stride, block_bytes;
  uint64_t* digests;  ///< block b at digests + b · digest_stride, or null
  int64_t digest_stride;
  const int32_t* pairs;  ///< [count, 2]: from, to
  int count, digests_per_block;
};
PX_KERNEL_INLINE void PX_BOUNDS(kRowOpThreads) CopyBlocksKernel(const PX_GRID_CONST CopyBlocksParams p) {
  px::GridDependencyWait();
  const int64_t from = px::Load(p.pairs + 2 * px::BlockX()), to = px::Load(p.pairs + 2 * px::BlockX() + 1);
  for (int64_t c = px::ThreadX() * 16; c < p.block_bytes; c += kRowOpThreads * 16)
    px::Store(reinterpret_cast<px::U128*>(p.plane + to * p.block_stride + c),
              px::Load(reinterpret_cast<const px::U128*>(p.plane + from * p.block_stride + c)));
  if (p.digests != nullptr)
    for (int i = px::ThreadX(); i < p.digests_per_block; i += kRowOpThreads)
      px::Store(p.digests + to * p.digest_stride + i, px::Load(p.digests + from * p.digest_stride + i));
  px::GridDependencyRelease();
}
inline void LaunchCopyBlocks(gpu::Stream& stream, const CopyBlocksParams& p) {
  if (p.count == 0) return;
  gpu::Launch(stream, {.grid = {static_cast<unsigned>(p.count)}, .block = {kRowOpThreads}}, &CopyBlocksKernel, p);
}

}  // namespace baton::cuda
