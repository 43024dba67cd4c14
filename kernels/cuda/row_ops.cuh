// Small row-wise operations: residual += x, row gather, soft cap, block copies, clearing digests of units that begin.
//
// Floor per element: add 4 + 4 + bytes of x and 1 FLOP, soft cap 8 bytes and ~20 FLOP; gather and block copies read and
// write each byte once.
#pragma once

#include "kernels/cuda/warp.cuh"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

constexpr int kRowOpThreads = 256;

inline unsigned RowOpBlocks(int64_t work) { return static_cast<unsigned>((work + kRowOpThreads - 1) / kRowOpThreads); }
PX_DEVICE int64_t RowOpIndex() { return static_cast<int64_t>(px::BlockX()) * kRowOpThreads + px::ThreadX(); }

template <typename In>
struct AddRowsParams {
  const In* x;      ///< [rows, n], n a multiple of 8
  float* residual;  ///< [rows, n]
  int64_t x_stride, residual_stride;
  int rows, n;
};

template <typename In>
PX_KERNEL void PX_BOUNDS(kRowOpThreads) AddRowsKernel(const PX_GRID_CONST AddRowsParams<In> p) {
  constexpr int kPer = kPerVector<In>;
  const int64_t i = RowOpIndex(), per_row = p.n / kPer;
  px::GridDependencyWait();
  if (i < p.rows * per_row) {
    const int64_t row = i / per_row, c = i % per_row * kPer;
    float add[kPer];
    LoadVector(p.x + row * p.x_stride + c, add);
    float* to = p.residual + row * p.residual_stride + c;
    PX_UNROLL
    for (int j = 0; j < kPer; j += 4) {
      float v[4];
      LoadVector(to + j, v);
      PX_UNROLL
      for (int k = 0; k < 4; ++k) v[k] = px::Add(v[k], add[j + k]);
      StoreVector(to + j, v);
    }
  }
  px::GridDependencyRelease();
}
template <typename In>
void LaunchAddRows(gpu::Stream& stream, const AddRowsParams<In>& p) {
  if (p.rows == 0) return;
  gpu::Launch(stream,
              {.grid = {RowOpBlocks(static_cast<int64_t>(p.rows) * p.n / kPerVector<In>)}, .block = {kRowOpThreads}},
              &AddRowsKernel<In>, p);
}

struct GatherRowsParams {
  const unsigned char* x;
  unsigned char* out;
  const int32_t* rows;         ///< [count]
  int64_t x_bytes, out_bytes;  ///< between rows, multiples of 4
  int count, row_bytes;        ///< row_bytes a multiple of 4
};
PX_KERNEL_INLINE void PX_BOUNDS(kRowOpThreads) GatherRowsKernel(const PX_GRID_CONST GatherRowsParams p) {
  const int64_t i = RowOpIndex(), per_row = p.row_bytes / 4;
  px::GridDependencyWait();
  if (i < p.count * per_row) {
    const int64_t row = i / per_row, c = i % per_row * 4;
    const uint32_t v = px::Load(reinterpret_cast<const uint32_t*>(p.x + px::Load(p.rows + row) * p.x_bytes + c));
    px::Store(reinterpret_cast<uint32_t*>(p.out + row * p.out_bytes + c), v);
  }
  px::GridDependencyRelease();
}
inline void LaunchGatherRows(gpu::Stream& stream, const GatherRowsParams& p) {
  if (p.count == 0) return;
  gpu::Launch(stream,
              {.grid = {RowOpBlocks(static_cast<int64_t>(p.count) * p.row_bytes / 4)}, .block = {kRowOpThreads}},
              &GatherRowsKernel, p);
}

struct SoftCapParams {
  float* x;  ///< [rows, n]
  int64_t stride;
  int rows, n;
  float cap;
};
PX_KERNEL_INLINE void PX_BOUNDS(kRowOpThreads) SoftCapKernel(const PX_GRID_CONST SoftCapParams p) {
  const int64_t i = RowOpIndex();
  px::GridDependencyWait();
  if (i < static_cast<int64_t>(p.rows) * p.n) {
    float* x = p.x + i / p.n * p.stride + i % p.n;
    px::Store(x, px::Mul(p.cap, px::Tanh(px::Load(x) / p.cap)));
  }
  px::GridDependencyRelease();
}
inline void LaunchSoftCap(gpu::Stream& stream, const SoftCapParams& p) {
  if (p.rows == 0) return;
  gpu::Launch(stream, {.grid = {RowOpBlocks(static_cast<int64_t>(p.rows) * p.n)}, .block = {kRowOpThreads}},
              &SoftCapKernel, p);
}

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

/// Zeroes the digests of the units whose first token this step writes: RoPE + KV write then only adds.
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
inline void LaunchBeginUnits(gpu::Stream& stream, const BeginUnitsParams& p) {
  if (p.rows == 0) return;
  gpu::Launch(stream, {.grid = {RowOpBlocks(static_cast<int64_t>(p.rows) * p.heads)}, .block = {kRowOpThreads}},
              &BeginUnitsKernel, p);
}

}  // namespace baton::cuda
