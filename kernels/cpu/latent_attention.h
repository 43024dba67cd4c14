// Multi-head latent attention on the CPU: the reference for devices. Plain loops in f32, not vectorized by hand.
#pragma once

#include "kernels/cpu/isa/kernel_table.h"
#include "kernels/cpu/pool.h"
#include "kernels/ops.h"

namespace baton::kernels::cpu {

/// What Ops says of LatentAttention. A row's bits depend on its query and its tokens alone.
void LatentAttention(const KernelTable& kernels, Pool& pool, const Tensor& q, const RaggedBatch& batch,
                     const KvPlaneView& latents, const AttentionParams& params, const Tensor& out);

}  // namespace baton::kernels::cpu
