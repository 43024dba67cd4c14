// The device half of px for sm_90a: mbarrier, TMA, wgmma. Meanings are in host90.h.
#pragma once

#include <cuda.h>

#include "kernels/px/device.cuh"

namespace baton::px {

/// Encoded on the host by the driver (runtime/ fills it); passed as a __grid_constant__.
struct TensorMap2D {
  CUtensorMap map;
};
inline constexpr int kTmaBoxColumns = 64;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

PX_DEVICE void MbarrierInit(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(arrivals) : "memory");
}
PX_DEVICE void MbarrierFenceInit() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
PX_DEVICE void MbarrierArrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}
PX_DEVICE void MbarrierArriveExpect(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(bytes) : "memory");
}
PX_DEVICE void MbarrierWait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}
PX_DEVICE void FenceAsyncProxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
PX_DEVICE void TmaLoad2D(void* dst, const TensorMap2D* map, int column, int row, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          SharedAddress(dst)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(column), "r"(row)
      : "memory");
}
PX_DEVICE uint64_t WgmmaDescriptor(const void* tile) {
  constexpr uint64_t kGroupStride = 8 * kTmaBoxColumns * 2, kSwizzle128 = 1;
  const uint32_t address = SharedAddress(tile);
  return (address & 0x3FFFFu) >> 4 | 1ull << 16 | (kGroupStride >> 4) << 32 | kSwizzle128 << 62;
}
/// The same fields: 64 columns are one swizzled row, and the stride is that between groups of 8 rows of K.
PX_DEVICE uint64_t WgmmaRowsDescriptor(const void* tile) { return WgmmaDescriptor(tile); }

#endif

// wgmma and setmaxnreg exist for sm_90a only: kernels ask PX_HAS_WGMMA.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PX_HAS_WGMMA 1

PX_DEVICE void WgmmaFence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
PX_DEVICE void WgmmaCommit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
PX_DEVICE void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
template <int N>
PX_DEVICE void WgmmaResult(float (&d)[N]) {
  PX_UNROLL
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N, int M>
PX_DEVICE void WgmmaResult(float (&d)[N][M]) {
  PX_UNROLL
  for (int i = 0; i < N; ++i) WgmmaResult(d[i]);
}
template <int kRegisters>
PX_DEVICE void RegisterIncrease() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
PX_DEVICE void RegisterDecrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

#define PX_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define PX_F16(i) PX_F4(i), PX_F4(i + 4), PX_F4(i + 8), PX_F4(i + 12)
PX_DEVICE void WgmmaM64N16K16(float (&d)[8], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, p, 1, 1, 0, 0;\n}"
      : PX_F4(0), PX_F4(4)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}
PX_DEVICE void WgmmaM64N32K16(float (&d)[16], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, p, 1, 1, 0, 0;\n}"
      : PX_F16(0)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}
PX_DEVICE void WgmmaM64N64K16(float (&d)[32], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
      "%32, %33, p, 1, 1, 0, 0;\n}"
      : PX_F16(0), PX_F16(16)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}
PX_DEVICE void WgmmaM64N128K16(float (&d)[64], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
      "%64, %65, p, 1, 1, 0, 0;\n}"
      : PX_F16(0), PX_F16(16), PX_F16(32), PX_F16(48)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}
PX_DEVICE void WgmmaM64N256K16(float (&d)[128], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
      "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
      "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
      "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
      "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, "
      "%128, %129, p, 1, 1, 0, 0;\n}"
      : PX_F16(0), PX_F16(16), PX_F16(32), PX_F16(48), PX_F16(64), PX_F16(80), PX_F16(96), PX_F16(112)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}
template <int N>
PX_DEVICE void WgmmaE4m3K32(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate) {
  static_assert(N == 16 || N == 32 || N == 64 || N == 128);
  if constexpr (N == 16)
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 "
        "{%0,%1,%2,%3,%4,%5,%6,%7}, "
        "%8, %9, p, 1, 1;\n}"
        : PX_F4(0), PX_F4(4)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  else if constexpr (N == 32)
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
        "%16, %17, p, 1, 1;\n}"
        : PX_F16(0)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  else if constexpr (N == 64)
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
        "%32, %33, p, 1, 1;\n}"
        : PX_F16(0), PX_F16(16)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  else
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
        "%64, %65, p, 1, 1;\n}"
        : PX_F16(0), PX_F16(16), PX_F16(32), PX_F16(48)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}
#undef PX_F16
#undef PX_F4
#define PX_ROW(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define PX_ROWS8 PX_ROW(0), PX_ROW(1), PX_ROW(2), PX_ROW(3), PX_ROW(4), PX_ROW(5), PX_ROW(6), PX_ROW(7)
PX_DEVICE void WgmmaM64N64K16(float (&d)[8][4], uint64_t a, uint64_t b, bool accumulate) {
  WgmmaM64N64K16(reinterpret_cast<float (&)[32]>(d), a, b, accumulate);
}
PX_DEVICE void WgmmaAddRows(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
      "{%32,%33,%34,%35}, %36, p, 1, 1, 1;\n}"
      : PX_ROWS8
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef PX_ROWS8
#undef PX_ROW

#else
#define PX_HAS_WGMMA 0
#endif

}  // namespace baton::px
