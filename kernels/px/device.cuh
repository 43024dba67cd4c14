// The device half of px: PTX for sm_80 and later. Meanings are in host.h. The only files with inline assembly.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/px/types.h"

#define PX_KERNEL __global__
#define PX_KERNEL_INLINE __global__ static
#define PX_DEVICE __device__ __forceinline__
#define PX_LAMBDA __device__
#define PX_BOUNDS(...) __launch_bounds__(__VA_ARGS__)
#if __CUDA_ARCH__ >= 1000
#define PX_SM100_OR(sm100, before) sm100
#else
#define PX_SM100_OR(sm100, before) before
#endif
#define PX_GRID_CONST __grid_constant__
#define PX_UNROLL _Pragma("unroll")
#define PX_PRAGMA(text) _Pragma(#text)
#define PX_UNROLL_BY(n) PX_PRAGMA(unroll(n))
extern __shared__ __align__(1024) unsigned char px_dynamic_shared[];
/// The comment in the PTX is what the table of make cuda knows shared memory by.
#define PX_SHARED(Type, name)                          \
  asm volatile("// px_shared %0" ::"n"(sizeof(Type))); \
  Type& name = *reinterpret_cast<Type*>(px_dynamic_shared)

namespace baton::px {

inline constexpr uint32_t kFullMask = 0xFFFFFFFFu;

// ---- geometry
PX_DEVICE int ThreadX() { return static_cast<int>(threadIdx.x); }
PX_DEVICE int BlockX() { return static_cast<int>(blockIdx.x); }
PX_DEVICE int BlockY() { return static_cast<int>(blockIdx.y); }
PX_DEVICE int BlockZ() { return static_cast<int>(blockIdx.z); }
PX_DEVICE int GridX() { return static_cast<int>(gridDim.x); }
PX_DEVICE int BlockDimX() { return static_cast<int>(blockDim.x); }
PX_DEVICE int Lane() { return static_cast<int>(threadIdx.x & 31u); }
PX_DEVICE int WarpIndex() { return static_cast<int>(threadIdx.x >> 5); }

// ---- barriers
PX_DEVICE void SyncThreads() { __syncthreads(); }
PX_DEVICE void SyncWarp(uint32_t mask = kFullMask) { __syncwarp(mask); }
PX_DEVICE void BarSync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
PX_DEVICE void BarArrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// ---- warp exchange
template <typename T>
PX_DEVICE T ShuffleXor(T v, int lane_mask, uint32_t mask = kFullMask) {
  static_assert(sizeof(T) == 4);
  return __shfl_xor_sync(mask, v, lane_mask);
}
template <typename T>
PX_DEVICE T Shuffle(T v, int source_lane, uint32_t mask = kFullMask) {
  static_assert(sizeof(T) == 4);
  return __shfl_sync(mask, v, source_lane);
}
PX_DEVICE uint32_t Ballot(bool predicate, uint32_t mask = kFullMask) { return __ballot_sync(mask, predicate); }

// ---- memory
template <typename T>
PX_DEVICE T Load(const T* p) {
  if constexpr (sizeof(T) == 16) {
    return BitCast<T>(*reinterpret_cast<const uint4*>(p));
  } else if constexpr (sizeof(T) == 8) {
    return BitCast<T>(*reinterpret_cast<const uint2*>(p));
  } else {
    return *p;
  }
}
template <typename T>
PX_DEVICE void Store(T* p, std::type_identity_t<T> v) {
  if constexpr (sizeof(T) == 16) {
    *reinterpret_cast<uint4*>(p) = BitCast<uint4>(v);
  } else if constexpr (sizeof(T) == 8) {
    *reinterpret_cast<uint2*>(p) = BitCast<uint2>(v);
  } else {
    *p = v;
  }
}
PX_DEVICE U128 LoadStream(const U128* p) {
  U128 r;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.w[0]), "=r"(r.w[1]), "=r"(r.w[2]), "=r"(r.w[3])
               : "l"(p));
  return r;
}
template <typename T>
PX_DEVICE T LoadShared(const T* p) {
  return Load(p);
}
template <typename T>
PX_DEVICE void StoreShared(T* p, std::type_identity_t<T> v) {
  Store(p, v);
}
template <typename T>
PX_DEVICE T AtomicAdd(T* p, std::type_identity_t<T> v) {
  if constexpr (sizeof(T) == 8 && std::is_integral_v<T>) {
    return static_cast<T>(atomicAdd(reinterpret_cast<unsigned long long*>(p), static_cast<unsigned long long>(v)));
  } else {
    return atomicAdd(p, v);
  }
}
PX_DEVICE void PrefetchL2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

PX_DEVICE uint32_t SharedAddress(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// ---- cp.async
PX_DEVICE void CpAsync16(void* dst, const void* src, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(dst)), "l"(src), "r"(bytes)
               : "memory");
}
PX_DEVICE void CpAsyncCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
PX_DEVICE void CpAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// ---- tensor cores of a warp
PX_DEVICE void LdMatrixX4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}
PX_DEVICE void LdMatrixX4Trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}
/// The body of a warp's mma: d[4] += a[4] · (b0, b1).
#define PX_MMA(shape_and_types)                                                                                       \
  asm volatile("mma.sync.aligned." shape_and_types " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
PX_DEVICE void MmaBf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  PX_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
}
PX_DEVICE void MmaF16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  PX_MMA("m16n8k16.row.col.f32.f16.f16.f32");
}
/// sm_89 and later.
PX_DEVICE void MmaE4m3(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 890
  PX_MMA("m16n8k32.row.col.f32.e4m3.e4m3.f32");
#else
  (void)d;
  (void)a;
  (void)b0;
  (void)b1;
  __trap();
#endif
}
#undef PX_MMA

// ---- arithmetic with pinned rounding
PX_DEVICE float Fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
PX_DEVICE float Mul(float a, float b) { return __fmul_rn(a, b); }
PX_DEVICE float Add(float a, float b) { return __fadd_rn(a, b); }
PX_DEVICE float Div(float a, float b) { return __fdiv_rn(a, b); }
PX_DEVICE float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
PX_DEVICE float Log2(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
PX_DEVICE float Rcp(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
PX_DEVICE float Rsqrt(float x) {
  float y;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
PX_DEVICE double Log64(double x) { return log(x); }
PX_DEVICE float Tanh(float x) { return tanhf(x); }
PX_DEVICE float Max(float a, float b) { return fmaxf(a, b); }
PX_DEVICE float Min(float a, float b) { return fminf(a, b); }
template <int kTable>
PX_DEVICE uint32_t Lop3(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(r) : "r"(a), "r"(b), "r"(c), "n"(kTable));
  return r;
}
PX_DEVICE int PopCount(uint32_t x) { return __popc(x); }
PX_DEVICE uint32_t MulHigh(uint32_t a, uint32_t b) { return __umulhi(a, b); }

// ---- packed pairs
PX_DEVICE uint32_t PackBf16(float x, float y) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
  return r;
}
PX_DEVICE F2 UnpackBf16(uint32_t v) { return {__uint_as_float(v << 16), __uint_as_float(v & 0xFFFF0000u)}; }
PX_DEVICE uint16_t PackE4m3(float x, float y) {
#if __CUDA_ARCH__ >= 890
  uint16_t r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(y), "f"(x));
  return r;
#else
  return static_cast<uint16_t>(FloatToE4m3Bits(x) | FloatToE4m3Bits(y) << 8);
#endif
}
PX_DEVICE F2 UnpackE4m3(uint16_t v) {
#if __CUDA_ARCH__ >= 890
  uint32_t pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(v));
  F2 r;
  asm("{.reg .b16 lo, hi;\n mov.b32 {lo, hi}, %2;\n cvt.f32.f16 %0, lo;\n cvt.f32.f16 %1, hi;}"
      : "=f"(r.x), "=f"(r.y)
      : "r"(pair));
  return r;
#else
  return {E4m3BitsToFloat(v & 0xFFu), E4m3BitsToFloat(v >> 8)};
#endif
}
PX_DEVICE uint32_t FmaBf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
PX_DEVICE uint32_t BytePermute(uint32_t a, uint32_t b, uint32_t selector) { return __byte_perm(a, b, selector); }
PX_DEVICE uint32_t E4m3ToBf16(uint16_t v) {
#if __CUDA_ARCH__ >= 890
  const F2 pair = UnpackE4m3(v);
  return PackBf16(pair.x, pair.y);
#else
  // Exponent and mantissa where bf16 has them: 2⁻¹²⁰ times the value, a subnormal one subnormal. 480 is NaN's code.
  const uint32_t codes = BytePermute(v, 0, 0x1404), magnitude = codes >> 4 & 0x07F007F0u;
  const uint32_t exact = FmaBf16x2(magnitude | (codes & 0x80008000u), 0x7B807B80u, 0x80008000u);  // · 2¹²⁰ − 0
  const uint32_t nan = ((magnitude + 0x00100010u) >> 11 & 0x00010001u) * 0xFFFFu;
  return (exact & ~nan) | (nan & 0x7FFF7FFFu);
#endif
}

// ---- memory of other devices
template <typename T>
PX_DEVICE void StorePeer(T* p, std::type_identity_t<T> v) {
  Store(p, v);
}
PX_DEVICE void FenceSystem() { __threadfence_system(); }
PX_DEVICE void StoreSystem(uint32_t* p, uint32_t v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
PX_DEVICE uint32_t LoadSystem(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
/// `stop` lies in the host's memory: it is asked once in 64 times.
PX_DEVICE void WaitSystem(const uint32_t* flag, uint32_t least, const uint32_t* stop) {
  for (uint32_t asked = 1; static_cast<int32_t>(LoadSystem(flag) - least) < 0; ++asked)
    if (asked % 64 == 0 && LoadSystem(stop) != 0) return;
}

// ---- programmatic dependent launch
PX_DEVICE void GridDependencyWait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
PX_DEVICE void GridDependencyRelease() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace baton::px
