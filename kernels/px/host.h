// The emulated half of px, and its reference: what each function means. Host code only.
//
// `where` is filled in by the compiler: reports name the kernel's source line. Functions "of the warp" must be met by
// all lanes of their mask, like the .sync.aligned instructions they stand for.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/px/types.h"
#include "kernels/simt/block.h"
#include "kernels/simt/device_memory.h"
#include "kernels/simt/sync_sites.h"

#define PX_KERNEL
#define PX_KERNEL_INLINE inline
#define PX_DEVICE inline
#define PX_LAMBDA
#define PX_BOUNDS(...)
/// One of two constants: for sm_100 and later, and for what came before.
#define PX_SM100_OR(sm100, before) before
#define PX_GRID_CONST
#define PX_UNROLL
#define PX_UNROLL_BY(n)
/// Declares `Type& name`: the block's dynamic shared memory. The launch must give sizeof(Type) bytes.
#define PX_SHARED(Type, name) \
  Type& name = *reinterpret_cast<Type*>(::baton::px::DynamicShared(sizeof(Type), ::baton::simt::Where::current()))

namespace baton::px {

using simt::Where;
inline constexpr uint32_t kFullMask = 0xFFFFFFFFu;

void* DynamicShared(size_t bytes, Where where);

// ---- geometry
inline int ThreadX() { return static_cast<int>(simt::CurrentThread().index.x); }
inline int BlockX() { return static_cast<int>(simt::CurrentBlock().index.x); }
inline int BlockY() { return static_cast<int>(simt::CurrentBlock().index.y); }
inline int BlockZ() { return static_cast<int>(simt::CurrentBlock().index.z); }
inline int GridX() { return static_cast<int>(simt::CurrentBlock().shape.grid.x); }
inline int BlockDimX() { return static_cast<int>(simt::CurrentBlock().shape.block.x); }
inline int Lane() { return simt::CurrentThread().lane; }
inline int WarpIndex() { return simt::CurrentThread().warp; }

// ---- barriers
inline void SyncThreads(Where where = Where::current()) {
  if (!simt::SyncSites::LeftOut(where)) simt::CurrentBlock().BarrierSync(0, 0, where);
}
void SyncWarp(uint32_t mask = kFullMask, Where where = Where::current());
/// Named barrier 1…15 met by `threads` threads (a multiple of 32); Arrive does not wait.
inline void BarSync(int id, int threads, Where where = Where::current()) {
  if (!simt::SyncSites::LeftOut(where)) simt::CurrentBlock().BarrierSync(id, static_cast<uint32_t>(threads), where);
}
inline void BarArrive(int id, int threads, Where where = Where::current()) {
  simt::CurrentBlock().BarrierArrive(id, static_cast<uint32_t>(threads), where);
}

// ---- warp exchange
uint32_t ShuffleXorBits(uint32_t value, int lane_mask, uint32_t mask, Where where);
uint32_t ShuffleBits(uint32_t value, int source_lane, uint32_t mask, Where where);
/// The value of lane (own lane ^ lane_mask).
template <typename T>
T ShuffleXor(T v, int lane_mask, uint32_t mask = kFullMask, Where where = Where::current()) {
  static_assert(sizeof(T) == 4);
  return BitCast<T>(ShuffleXorBits(BitCast<uint32_t>(v), lane_mask, mask, where));
}
/// The value of lane `source_lane`.
template <typename T>
T Shuffle(T v, int source_lane, uint32_t mask = kFullMask, Where where = Where::current()) {
  static_assert(sizeof(T) == 4);
  return BitCast<T>(ShuffleBits(BitCast<uint32_t>(v), source_lane, mask, where));
}
/// Bit l is lane l's predicate.
uint32_t Ballot(bool predicate, uint32_t mask = kFullMask, Where where = Where::current());

// ---- memory
[[noreturn]] void FailGlobal(const void* p, size_t bytes, const char* what, Where where);
void CountAccess(bool shared, const void* p, size_t bytes, Where where);
/// Whether [p, p + bytes) is naturally aligned and the device's.
inline bool MayTouch(const void* p, size_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0 && simt::KernelMayTouch(p, bytes);
}
inline void CountGlobal(const void* p, size_t bytes, Where where) {
  if (!MayTouch(p, bytes)) FailGlobal(p, bytes, "global access", where);
  if (simt::CurrentBlock().accesses != nullptr) CountAccess(false, p, bytes, where);
}
inline void CountShared(const void* p, size_t bytes, Where where) {
  simt::CurrentBlock().SharedOffset(p, bytes, bytes, "shared access", where);
  if (simt::CurrentBlock().accesses != nullptr) CountAccess(true, p, bytes, where);
}
/// Global load and store of 1…16 bytes, naturally aligned.
template <typename T>
T Load(const T* p, Where where = Where::current()) {
  CountGlobal(p, sizeof(T), where);
  return *p;
}
template <typename T>
void Store(T* p, std::type_identity_t<T> v, Where where = Where::current()) {
  CountGlobal(p, sizeof(T), where);
  *p = v;
}
/// 16 bytes read once: not kept in L1, first to leave L2.
inline U128 LoadStream(const U128* p, Where where = Where::current()) { return Load(p, where); }
template <typename T>
T LoadShared(const T* p, Where where = Where::current()) {
  CountShared(p, sizeof(T), where);
  return *p;
}
template <typename T>
void StoreShared(T* p, std::type_identity_t<T> v, Where where = Where::current()) {
  CountShared(p, sizeof(T), where);
  *p = v;
  simt::CurrentBlock().NoteStored(p, sizeof(T));
}
/// Relaxed read-modify-write; returns the old value. `p` in global or shared memory.
template <typename T>
T AtomicAdd(T* p, std::type_identity_t<T> v) {
  if constexpr (std::is_integral_v<T>) {
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);  // to ThreadSanitizer no race with its like
  } else {
    const T old = *p;
    *p = old + v;
    return old;
  }
}
inline void PrefetchL2(const void*) {}

// ---- cp.async (sm_80)
/// Copies 16 bytes global → shared; !valid writes zeroes and does not read. Both addresses 16-byte aligned.
void CpAsync16(void* dst, const void* src, bool valid, Where where = Where::current());
void CpAsyncCommit(Where where = Where::current());
void CpAsyncWaitGroups(size_t pending, Where where);
/// Waits until at most N of this thread's newest groups are in flight.
template <int N>
void CpAsyncWait(Where where = Where::current()) {
  CpAsyncWaitGroups(N, where);
}

// ---- tensor cores of a warp (fragment layouts: PTX ISA, "Matrix Fragments")
/// Four 8×8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
void LdMatrixX4(uint32_t (&r)[4], const void* row, Where where = Where::current());
void LdMatrixX4Trans(uint32_t (&r)[4], const void* row, Where where = Where::current());
/// d[16×8] += a[16×16] · b[16×8], f32 accumulation.
void MmaBf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Where where = Where::current());
void MmaF16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Where where = Where::current());
/// d[16×8] += a[16×32] · b[32×8], e4m3.
void MmaE4m3(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Where where = Where::current());

// ---- arithmetic with pinned rounding (the compiler never contracts these)
inline float Fma(float a, float b, float c) { return std::fma(a, b, c); }
inline float Mul(float a, float b) { return a * b; }
inline float Add(float a, float b) { return a + b; }
inline float Div(float a, float b) { return a / b; }
inline float Exp2(float x) { return std::exp2(x); }          ///< ex2.approx
inline float Log2(float x) { return std::log2(x); }          ///< lg2.approx
inline float Rcp(float x) { return 1.0f / x; }               ///< rcp.approx
inline float Rsqrt(float x) { return 1.0f / std::sqrt(x); }  ///< rsqrt.approx
inline double Log64(double x) { return std::log(x); }        ///< libm's
inline float Tanh(float x) { return std::tanh(x); }          ///< libm's, not tanh.approx
inline float Max(float a, float b) { return std::fmax(a, b); }
inline float Min(float a, float b) { return std::fmin(a, b); }
/// Bitwise function of three words by truth table.
template <int kTable>
uint32_t Lop3(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r = 0;
  for (int i = 0; i < 8; ++i)
    if (kTable >> i & 1) r |= ((i & 4) ? a : ~a) & ((i & 2) ? b : ~b) & ((i & 1) ? c : ~c);
  return r;
}
inline int PopCount(uint32_t x) { return __builtin_popcount(x); }
/// High 32 bits of the product.
inline uint32_t MulHigh(uint32_t a, uint32_t b) { return static_cast<uint32_t>((static_cast<uint64_t>(a) * b) >> 32); }

// ---- packed pairs: element 0 in the low half
inline uint32_t PackBf16(float x, float y) {
  return FloatToBf16Bits(x) | static_cast<uint32_t>(FloatToBf16Bits(y)) << 16;
}
inline F2 UnpackBf16(uint32_t v) { return {Bf16BitsToFloat(v & 0xFFFFu), Bf16BitsToFloat(v >> 16)}; }
inline uint16_t PackE4m3(float x, float y) {
  return static_cast<uint16_t>(FloatToE4m3Bits(x) | FloatToE4m3Bits(y) << 8);
}
inline F2 UnpackE4m3(uint16_t v) { return {E4m3BitsToFloat(v & 0xFFu), E4m3BitsToFloat(v >> 8)}; }
/// Two e4m3 as two bf16: exact.
inline uint32_t E4m3ToBf16(uint16_t v) { return PackBf16(E4m3BitsToFloat(v & 0xFFu), E4m3BitsToFloat(v >> 8)); }
/// Byte i of the result is the one of b:a (a has bytes 0 … 3) that the selector's digit i (hexadecimal, 0 … 7) names.
inline uint32_t BytePermute(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i) r |= static_cast<uint32_t>(bytes >> (selector >> (4 * i) & 7u) * 8 & 0xFFu) << (8 * i);
  return r;
}
/// Two bf16 products plus addends, each rounded once to bf16.
uint32_t FmaBf16x2(uint32_t a, uint32_t b, uint32_t c);

// ---- memory of other devices (kernels/runtime/peer_memory.h), or the own that they write
void StorePeerBytes(void* p, const void* value, size_t bytes, Where where);
/// Another device sees it in no order, perhaps at the kernel's end only, but what a FenceSystem orders.
template <typename T>
void StorePeer(T* p, std::type_identity_t<T> v, Where where = Where::current()) {
  StorePeerBytes(p, &v, sizeof(T), where);
}
/// What the thread has stored, and others of its block before a SyncThreads, is seen before what it stores from now on.
void FenceSystem(Where where = Where::current());
/// A flag that another device waits for: by itself it orders nothing.
void StoreSystem(uint32_t* p, uint32_t v, Where where = Where::current());
/// Waits until *flag, of the own device, is `least` or later (counted mod 2³²), or *stop, pinned, is not 0. What was
/// ordered before the flag is seen afterwards.
void WaitSystem(const uint32_t* flag, uint32_t least, const uint32_t* stop, Where where = Where::current());

// ---- programmatic dependent launch (sm_90)
/// Waits until the kernels before this one have finished and their writes are visible.
void GridDependencyWait(Where where = Where::current());
/// Lets the next kernel of the stream start.
void GridDependencyRelease(Where where = Where::current());

}  // namespace baton::px
