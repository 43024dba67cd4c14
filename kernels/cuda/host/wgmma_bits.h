// Whether the forms of a product add in one order on a device: they may then be chosen by the number of rows.
#pragma once

#include <vector>

#include "kernels/runtime/runtime.h"

namespace baton::cuda {

/// How many products the sums have that a worker checks: of neither do tiles take whole steps, and one is as long as
/// the longest sums of a model of 8B.
inline constexpr int kCheckedProducts[] = {1032, 14344};

/// Forms of the dense GEMM: whether they are asked about, then whether they have the bits of the one by mma.sync.
struct DenseForms {
  bool wgmma = true;  ///< each number of columns, either operand as its rows, each depth of the pipeline; on sm_90 and
                      ///< under the emulator only
  bool gemv = true;   ///< for a few rows: mma.sync with its operands exchanged, and a gate behind it; on any GPU
};

/// Multiplies the same random numbers by each of `asked`, with outputs in bf16 and added in f32, and compares the bits.
/// `k`: how many products a sum has, a multiple of 8. Enqueues on `stream`, waits, and frees what it took (12 MiB at k
/// = 14,344); neither where that much memory is not there.
DenseForms AddAsMmaSync(gpu::Stream& stream, int k, DenseForms asked = {});

/// Whether the tiles of the GEMM of e4m3 with e4m3 give a row the same bits: its form for every number of rows, since
/// mma.sync may keep more bits of such sums; and whether the sums are mma.sync's, but for those bits. As above in all
/// else; on sm_90 and under the emulator only.
bool E4m3WgmmaTilesAgree(gpu::Stream& stream);

/// Whether both are one product, each rounded by itself: √(Σ (got − want)²) ≤ 2⁻⁷ · √(Σ want²).
bool NearlyEqual(const std::vector<float>& got, const std::vector<float>& want);

/// As the one before, of attention: the same random prompts by mma.sync and wgmma, of both head sizes.
bool WgmmaAttendsAsMmaSync(gpu::Stream& stream);

}  // namespace baton::cuda
