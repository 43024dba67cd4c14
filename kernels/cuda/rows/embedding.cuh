// out[t] = table[ids[t]] · scale, where an id below 0 stands for a token that the step before drew, and becomes it.
//
// Floor per token of h (bf16 table, f32 out): read 2h, write 4h bytes, h FLOP. Under 1 µs up to 256 tokens of 4096:
// launch-bound.
#pragma once

#include "kernels/cuda/warp.cuh"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

template <typename Table>
struct EmbeddingParams {
  int32_t* ids;        ///< [rows] i < 0: drawn[~i], which is written in its place
  const Table* table;  ///< [vocab, hidden] f32, bf16 or f16
  float* out;          ///< [rows, hidden]
  int64_t table_stride, out_stride;
  int rows, hidden;        ///< hidden a multiple of 8
  int first_id, ids_held;  ///< this rank's slice of the vocabulary; other ids give zeroes (summed over ranks)
  float scale;
  const int32_t* drawn = nullptr;  ///< null: no id is below 0
};

constexpr int kEmbeddingThreads = 128;

template <typename Table>
PX_KERNEL void PX_BOUNDS(kEmbeddingThreads) EmbeddingKernel(const PX_GRID_CONST EmbeddingParams<Table> p) {
  const int row = px::BlockX();
  px::GridDependencyWait();
  const int given = px::Load(p.ids + row);
  int id = given;
  if (given < 0 && p.drawn != nullptr) {
    id = px::Load(p.drawn + ~given);
    px::SyncThreads();  // all have read what is given
    if (px::ThreadX() == 0) px::Store(p.ids + row, id);
  }
  id -= p.first_id;
  const bool held = id >= 0 && id < p.ids_held;
  for (int c = px::ThreadX() * 4; c < p.hidden; c += kEmbeddingThreads * 4) {
    float v[4] = {};
    if (held) LoadFour(p.table + id * p.table_stride + c, v);
    PX_UNROLL
    for (int i = 0; i < 4; ++i) v[i] = px::Mul(v[i], p.scale);
    StoreVector(p.out + row * p.out_stride + c, v);
  }
  px::GridDependencyRelease();
}

template <typename Table>
void LaunchEmbedding(gpu::Stream& stream, const EmbeddingParams<Table>& p, bool programmatic = false) {
  if (p.rows == 0) return;
  gpu::Launch(stream,
              {.grid = {static_cast<unsigned>(p.rows)}, .block = {kEmbeddingThreads}, .programmatic = programmatic},
              &EmbeddingKernel<Table>, p);
}

}  // namespace baton::cuda
