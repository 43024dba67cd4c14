// The grid of small row-wise kernels: one thread per element, vector or entry.
#pragma once

#include "kernels/px/px.h"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

constexpr int kRowOpThreads = 256;

inline unsigned RowOpBlocks(int64_t work) { return static_cast<unsigned>((work + kRowOpThreads - 1) / kRowOpThreads); }
PX_DEVICE int64_t RowOpIndex() { return static_cast<int64_t>(px::BlockX()) * kRowOpThreads + px::ThreadX(); }

}  // namespace baton::cuda
