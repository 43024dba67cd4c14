// NCCL for the emulated devices, of ranks that are threads and of ranks that are processes of one machine: through
// shared memory, in pieces of random sizes with pauses between them. Where NCCL would hang or mix bytes up (a rank has
// another length, or another call) it says so, on every rank that sees it.
#pragma once

#include <cstdint>

#include "kernels/runtime/nccl.h"

namespace baton::gpu {

const NcclApi& EmulatedNccl();

/// For tests: rank `rank` of every group stands still for ever in its `call`-th call, counted from 0. Also by the
/// variable BATON_EMULATED_NCCL_HANG=rank:call. A rank of -1: none does.
void HangInEmulatedNccl(int rank, int64_t call);
/// Ranks of this process that stand still so.
int HangingInEmulatedNccl();
/// For tests: pauses, sizes of pieces. The same for a seed on a rank.
void SeedEmulatedNccl(uint64_t seed);

}  // namespace baton::gpu
