// The emulated half of what only Hopper has: mbarrier, TMA, wgmma. See host.h.
#pragma once

#include "kernels/px/host.h"

/// Whether the target of this compilation has wgmma.
#define PX_HAS_WGMMA 1

namespace baton::px {

/// A 2-D bf16 tensor in global memory as TMA sees it, read in boxes of box_rows × 64 columns that land in shared
/// memory as rows of 128 bytes, 16-byte chunks XOR-swizzled by row % 8. Outside of the tensor reads as zero.
struct TensorMap2D {
  const bf16* base;
  int columns, rows, row_stride;
  int box_rows;
};
inline constexpr int kTmaBoxColumns = 64;

// ---- mbarrier: 8 bytes in shared memory
void MbarrierInit(uint64_t* barrier, int arrivals, Where where = Where::current());
/// Makes the initialized mbarriers known to TMA; required before the first copy that names one.
void MbarrierFenceInit(Where where = Where::current());
void MbarrierArrive(uint64_t* barrier, Where where = Where::current());
/// Arrives and announces `bytes` that TMA will deliver in this phase.
void MbarrierArriveExpect(uint64_t* barrier, int bytes, Where where = Where::current());
/// Waits until the phase of this parity has completed.
void MbarrierWait(uint64_t* barrier, uint32_t parity, Where where = Where::current());
/// Makes this thread's shared-memory writes visible to TMA and wgmma; nobody else's. (Emulation: everybody's in a
/// kernel without mbarriers.)
void FenceAsyncProxy(Where where = Where::current());

/// Starts the copy of the box at (column, row) to dst (1024-byte aligned); the barrier counts its bytes.
void TmaLoad2D(void* dst, const TensorMap2D* map, int column, int row, uint64_t* barrier,
               Where where = Where::current());

// ---- wgmma: 128 threads
/// Descriptor of a K-major operand tile of 64 bf16 columns in the layout that TmaLoad2D writes, 1024-byte aligned.
uint64_t WgmmaDescriptor(const void* tile, Where where = Where::current());
/// Descriptor of an operand whose rows are K, of 64 bf16 columns in the layout that TmaLoad2D writes: the 16 rows at
/// `tile`, whose number is a multiple of 8.
uint64_t WgmmaRowsDescriptor(const void* tile, Where where = Where::current());
/// Orders the registers of the accumulators, and of operands: required before the first wgmma and after every
/// WgmmaWait.
void WgmmaFence(Where where = Where::current());
void WgmmaCommit(Where where = Where::current());
void WgmmaWaitGroups(size_t pending, Where where);
template <int N>
void WgmmaWait(Where where = Where::current()) {
  WgmmaWaitGroups(N, where);
}
void WgmmaIssue(float* d, int n, uint64_t a, uint64_t b, bool accumulate, Where where, bool e4m3 = false);
void WgmmaIssueRows(float* d, const uint32_t (&a)[4], uint64_t b, Where where);
/// d[64 × N] (+)= a[64 × 16] · b[N × 16]ᵀ, bf16. `d` may be read after WgmmaWait only.
inline void WgmmaM64N16K16(float (&d)[8], uint64_t a, uint64_t b, bool accumulate, Where where = Where::current()) {
  WgmmaIssue(d, 16, a, b, accumulate, where);
}
inline void WgmmaM64N32K16(float (&d)[16], uint64_t a, uint64_t b, bool accumulate, Where where = Where::current()) {
  WgmmaIssue(d, 32, a, b, accumulate, where);
}
inline void WgmmaM64N64K16(float (&d)[32], uint64_t a, uint64_t b, bool accumulate, Where where = Where::current()) {
  WgmmaIssue(d, 64, a, b, accumulate, where);
}
inline void WgmmaM64N128K16(float (&d)[64], uint64_t a, uint64_t b, bool accumulate, Where where = Where::current()) {
  WgmmaIssue(d, 128, a, b, accumulate, where);
}
inline void WgmmaM64N256K16(float (&d)[128], uint64_t a, uint64_t b, bool accumulate, Where where = Where::current()) {
  WgmmaIssue(d, 256, a, b, accumulate, where);
}
/// d[64 × N] (+)= a[64 × 32] · b[N × 32]ᵀ, e4m3: 128 codes are a row of the operands' tiles. `d` as above.
template <int N>
void WgmmaE4m3K32(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate, Where where = Where::current()) {
  WgmmaIssue(d, N, a, b, accumulate, where, true);
}
/// As WgmmaM64N64K16 with the accumulators as fragments of mma.sync: each warp has 16 rows, d[i] is of columns 8i … 8i
/// + 7.
inline void WgmmaM64N64K16(float (&d)[8][4], uint64_t a, uint64_t b, bool accumulate, Where where = Where::current()) {
  WgmmaIssue(&d[0][0], 64, a, b, accumulate, where);
}
/// d[64 × 64] += a[64 × 16] · b[16 × 64], bf16: `a` as fragments of mma.sync, b by WgmmaRowsDescriptor. Neither `d` nor
/// `a` may be touched before WgmmaWait.
inline void WgmmaAddRows(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, Where where = Where::current()) {
  WgmmaIssueRows(&d[0][0], a, b, where);
}
/// After WgmmaWait<0>: keeps the compiler from moving what reads `d` before the wait. No instruction.
template <int N>
void WgmmaResult(float (&)[N]) {}
template <int N, int M>
void WgmmaResult(float (&)[N][M]) {}
/// Moves registers between the warps of a block, which is taken to have all that its multiprocessor has: an increase
/// waits until others have given as many. All four warps of a warpgroup do it.
void MoveRegisters(int registers, bool more, Where where);
template <int kRegisters>
void RegisterIncrease(Where where = Where::current()) {
  static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0);
  MoveRegisters(kRegisters, true, where);
}
template <int kRegisters>
void RegisterDecrease(Where where = Where::current()) {
  static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0);
  MoveRegisters(kRegisters, false, where);
}

}  // namespace baton::px
