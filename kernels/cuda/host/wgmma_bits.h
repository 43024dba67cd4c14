// Whether the forms of a product add in one order on a device: they may then be chosen by the number of rows.
#pragma once

#include <vector>

#include "kernels/runtime/runtime.h"

namespace baton::cuda {

/// How many products the sums have that a worker checks: of neither do tiles take whole steps, and one is as long as
/// the longest sums of a model of 8B.
inline constexpr int kCheckedProducts[] = {1032, 14344};

/// Multiplies the same random numbers by every form of the dense GEMM and compares the bits: each number of columns
/// that wgmma has there, either operand as its rows, each depth of the pipeline, outputs in bf16 and added in f32. `k`:
/// how many products a sum has, a multiple of 8. Enqueues on `stream`, waits, and frees what it took (12 MiB at k =
/// 14,344); false where that much memory is not there. On sm_90 and under the emulator only.
bool WgmmaAddsAsMmaSync(gpu::Stream& stream, int k);

/// As above, of the form for a few rows: whether mma.sync adds in the same order with its operands exchanged, and
/// whether a gate behind it has the bits that it has by itself. On any GPU.
bool GemvAddsAsMmaSync(gpu::Stream& stream, int k);

/// Whether the tiles of the GEMM of e4m3 with e4m3 give a row the same bits: its form for every number of rows, since
/// mma.sync may keep more bits of such sums; and whether the sums are mma.sync's, but for those bits. As above in all
/// else.
bool E4m3WgmmaTilesAgree(gpu::Stream& stream);

/// Whether both are one product, each rounded by itself: √(Σ (got − want)²) ≤ 2⁻⁷ · √(Σ want²).
bool NearlyEqual(const std::vector<float>& got, const std::vector<float>& want);

/// As the first, of attention: the same random prompts by both forms, of both head sizes.
bool WgmmaAttendsAsMmaSync(gpu::Stream& stream);

}  // namespace baton::cuda
