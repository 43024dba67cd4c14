// Whether wgmma adds in the order of mma.sync on a device: the dense GEMMs may then be chosen by the number of rows.
#pragma once

#include <vector>

#include "kernels/runtime/runtime.h"

namespace baton::cuda {

/// Multiplies the same random numbers by every form of the dense GEMM and compares the bits. `k`: how many products a
/// sum has, a multiple of 8. Enqueues on `stream`, waits, and frees what it took (1.5 MiB at k = 1,024); false where
/// that much memory is not there. On sm_90 and under the emulator only.
bool WgmmaAddsAsMmaSync(gpu::Stream& stream, int k);

/// Whether the tiles of the GEMM of e4m3 with e4m3 give a row the same bits: its form for every number of rows, since
/// mma.sync may keep more bits of such sums; and whether the sums are mma.sync's, but for those bits. As above in all
/// else.
bool E4m3WgmmaTilesAgree(gpu::Stream& stream);

/// Whether both are one product, each rounded by itself: √(Σ (got − want)²) ≤ 2⁻⁷ · √(Σ want²).
bool NearlyEqual(const std::vector<float>& got, const std::vector<float>& want);

/// As the first, of attention: the same random prompts by both forms, of both head sizes.
bool WgmmaAttendsAsMmaSync(gpu::Stream& stream);

}  // namespace baton::cuda
