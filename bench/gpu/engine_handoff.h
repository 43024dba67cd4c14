// A prompt that one process computes and another goes on from, both on one GPU: what the handoff adds to the time to
// the first token, how fast KV moves, by CUDA IPC and staged through pinned memory of the host.
#pragma once

#include "bench/gpu/engine_model.h"

namespace baton::bench {

/// A process of each role; returns how the program ends (ProgramExit). A row of the JSON for each prompt and way: `us`
/// from the prompt's start until all of its KV is verified and in the other process's blocks, `alone_us` what the
/// prompt takes without that, `gigabytes_per_s` of moving it when nothing is computed, and whether both processes draw
/// the same token behind it.
int RunHandoff(const EngineOptions& options);

}  // namespace baton::bench
