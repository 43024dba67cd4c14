// NCCL for the emulated devices, of ranks that are threads and of ranks that are processes of one machine: through
// shared memory, in pieces of random sizes.
//
// As unkind as the library may be. Calls of ranks meet in any order; a call is complete at any time that the order of
// its stream allows (StreamsDrift), and only then has its target what arrived: until then it has something else, and
// what is sent is read. Half of the seeds let a send end only when its peer has taken it all. Calls may answer that
// they are in progress, and come onto the stream when async_error has been asked. Of a rank that fails or leaves half
// of the others hear; the rest wait for ever. Where NCCL would hang or mix bytes up (a rank has another length, or
// another call) this one says so, on every rank that sees it; a call with an aborted communicator ends the process.
// An abort waits until no graph has a call of the communicator in it; after a minute, for ever, which ends the process.
// A call that fails in a capture spoils it, and all fail on a GPU that has failed. Ranks connect when they make a call
// of such peers and lengths for the first time, which fails in a capture: so it does with some of NCCL's networks.
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
/// Aborts of this process that wait for graphs.
int AbortingInEmulatedNccl();
/// For tests: the next call of rank `rank`, of those in a capture or of the others, fails at once with an error of
/// CUDA.
void RefuseInEmulatedNccl(int rank, bool in_capture);
/// So, but the rank fails: when some bytes have moved, async_error says it. BATON_EMULATED_NCCL_FAIL.
void FailInEmulatedNccl(int rank, int64_t call);
/// For tests: which of all this happens. The same for a seed on a rank; an odd one: sends wait for their peers.
void SeedEmulatedNccl(uint64_t seed);

}  // namespace baton::gpu
