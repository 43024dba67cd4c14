#include "kernels/px/host.h"

#include <array>

#include "kernels/simt/device_memory.h"

namespace baton::px {
namespace {

using simt::Block;
using simt::CurrentBlock;
using simt::CurrentThread;
using simt::Warp;

template <typename T>
T& Slot(Warp& w, int lane) {
  static_assert(sizeof(T) <= simt::kSlotBytes);
  return *reinterpret_cast<T*>(w.slots[lane].bytes);
}

void Perform(simt::AsyncCopy& c) {
  const simt::Unwatched emulator;
  if (c.valid)
    std::memcpy(c.dst, c.src, static_cast<size_t>(c.bytes));
  else
    std::memset(c.dst, 0, static_cast<size_t>(c.bytes));
  c.performed = true;
}
/// The hardware copies at some time between the issue and the wait: a race with either is one.
void NoteCopy(const simt::AsyncCopy& c) {
  simt::NoteWrite(c.dst, static_cast<size_t>(c.bytes));
  if (c.valid) simt::NoteRead(c.src, static_cast<size_t>(c.bytes));
}

void CheckAligned(const void* p, size_t bytes, const char* what, Where where) {
  if (reinterpret_cast<uintptr_t>(p) % bytes != 0)
    CurrentBlock().Fail(std::string(what) + " of " + std::to_string(bytes) + " bytes at a misaligned address", where);
}

void CheckAddress(const void* p, size_t bytes, const char* what, Where where) {
  CheckAligned(p, bytes, what, where);
  bool of_device;
  {
    const simt::Unwatched emulator;
    of_device = simt::KernelMayTouch(p, bytes);
  }
  if (!of_device) CurrentBlock().Fail(std::string(what) + " of memory that is not the device's", where);
}

struct MatrixExchange {
  uint16_t row[8];
  uint32_t out[4];
};

template <bool kTransposed>
void DistributeMatrices(Block& block, Warp& w) {
  for (int lane = 0; lane < 32; ++lane) {
    const int q = lane >> 2, t = lane & 3;
    for (int j = 0; j < 4; ++j) {
      auto at = [&](int r, int c) { return static_cast<uint32_t>(Slot<MatrixExchange>(w, 8 * j + r).row[c]); };
      const uint32_t lo = kTransposed ? at(2 * t, q) : at(q, 2 * t);
      const uint32_t hi = kTransposed ? at(2 * t + 1, q) : at(q, 2 * t + 1);
      Slot<MatrixExchange>(w, lane).out[j] = lo | hi << 16;
    }
  }
  ++block.counters.ldmatrix;
}

template <bool kTransposed>
void LoadMatrices(uint32_t (&r)[4], const void* row, Where where) {
  Block& block = CurrentBlock();
  block.SharedOffset(row, 16, 16, "ldmatrix", where);
  CountShared(row, 16, where);
  simt::NoteRead(row, 16);
  MatrixExchange in;
  std::memcpy(in.row, row, 16);
  const auto* out =
      static_cast<const MatrixExchange*>(block.Meet(kFullMask, &in, sizeof(in), &DistributeMatrices<kTransposed>,
                                                    kTransposed ? "ldmatrix.trans" : "ldmatrix", where));
  for (int j = 0; j < 4; ++j) r[j] = out->out[j];
}

struct MmaExchange {
  uint32_t a[4], b[2];
  float d[4];
};

float DecodeBf16(uint32_t word, int i) { return Bf16BitsToFloat(word >> (16 * i) & 0xFFFFu); }
float DecodeF16(uint32_t word, int i) { return F16BitsToFloat(word >> (16 * i) & 0xFFFFu); }
float DecodeE4m3(uint32_t word, int i) { return E4m3BitsToFloat(word >> (8 * i) & 0xFFu); }

/// The fragment layout is the same for 16-bit (2 per register) and 8-bit (4 per register) elements.
template <int kPerRegister, float (*kDecode)(uint32_t, int)>
void WarpMma(Block& block, Warp& w) {
  constexpr int kDepth = 8 * kPerRegister;
  float a[16][kDepth], b[kDepth][8];
  for (int lane = 0; lane < 32; ++lane) {
    const MmaExchange& s = Slot<MmaExchange>(w, lane);
    const int g = lane >> 2, t = (lane & 3) * kPerRegister;
    for (int i = 0; i < kPerRegister; ++i) {
      a[g][t + i] = kDecode(s.a[0], i);
      a[g + 8][t + i] = kDecode(s.a[1], i);
      a[g][t + i + kDepth / 2] = kDecode(s.a[2], i);
      a[g + 8][t + i + kDepth / 2] = kDecode(s.a[3], i);
      b[t + i][g] = kDecode(s.b[0], i);
      b[t + i + kDepth / 2][g] = kDecode(s.b[1], i);
    }
  }
  float product[16][8];
  for (int m = 0; m < 16; ++m) {
    float sum[8] = {};
    for (int k = 0; k < kDepth; ++k)
      for (int n = 0; n < 8; ++n) sum[n] += a[m][k] * b[k][n];
    for (int n = 0; n < 8; ++n) product[m][n] = sum[n];
  }
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane >> 2, t = (lane & 3) * 2;
    float* d = Slot<MmaExchange>(w, lane).d;
    for (int i = 0; i < 4; ++i) d[i] += product[g + 8 * (i >> 1)][t + (i & 1)];
  }
  ++block.counters.mma;
}

void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, void (*combine)(Block&, Warp&),
         const char* operation, Where where) {
  MmaExchange in;
  for (int i = 0; i < 4; ++i) {
    in.a[i] = a[i];
    in.d[i] = d[i];
  }
  in.b[0] = b0;
  in.b[1] = b1;
  const auto* out =
      static_cast<const MmaExchange*>(CurrentBlock().Meet(kFullMask, &in, sizeof(in), combine, operation, where));
  for (int i = 0; i < 4; ++i) d[i] = out->d[i];
}

struct ShuffleExchange {
  uint32_t value;
  int argument;
};
template <bool kXor>
void CombineShuffle(Block& block, Warp& w) {
  std::array<uint32_t, 32> values{};
  for (int l = 0; l < 32; ++l)
    if (w.mask >> l & 1) values[l] = Slot<ShuffleExchange>(w, l).value;
  for (int l = 0; l < 32; ++l) {
    if (!(w.mask >> l & 1)) continue;
    ShuffleExchange& s = Slot<ShuffleExchange>(w, l);
    s.value = values[(kXor ? l ^ s.argument : s.argument) & 31];
  }
  ++block.counters.shuffles;
}
void CombineBallot(Block& block, Warp& w) {
  uint32_t bits = 0;
  for (int l = 0; l < 32; ++l)
    if ((w.mask >> l & 1) && Slot<uint32_t>(w, l) != 0) bits |= 1u << l;
  for (int l = 0; l < 32; ++l) Slot<uint32_t>(w, l) = bits;
  ++block.counters.shuffles;
}

uint32_t DoShuffle(bool by_xor, uint32_t value, int argument, uint32_t mask, Where where) {
  const int lane = CurrentThread().lane, source = (by_xor ? lane ^ argument : argument) & 31;
  if (!(mask >> source & 1))
    CurrentBlock().Fail("shuffle reads lane " + std::to_string(source) + ", which is not in the mask", where);
  const ShuffleExchange in{value, argument};
  return static_cast<const ShuffleExchange*>(
             CurrentBlock().Meet(mask, &in, sizeof(in), by_xor ? &CombineShuffle<true> : &CombineShuffle<false>,
                                 by_xor ? "shfl.bfly" : "shfl.idx", where))
      ->value;
}

bool DependencyIsMet(const void* block, uint64_t) { return static_cast<const Block*>(block)->dependency_met; }

}  // namespace

void* DynamicShared(size_t bytes, Where where) {
  Block& block = CurrentBlock();
  if (bytes > block.shape.shared_bytes)
    block.Fail("the kernel uses " + std::to_string(bytes) + " bytes of shared memory, the launch gave " +
                   std::to_string(block.shape.shared_bytes),
               where);
  return block.shared;
}

void SyncWarp(uint32_t mask, Where where) {
  if (!simt::SyncSites::LeftOut(where)) CurrentBlock().Meet(mask, nullptr, 0, nullptr, "__syncwarp", where, true);
}
uint32_t ShuffleXorBits(uint32_t value, int lane_mask, uint32_t mask, Where where) {
  return DoShuffle(true, value, lane_mask, mask, where);
}
uint32_t ShuffleBits(uint32_t value, int source_lane, uint32_t mask, Where where) {
  return DoShuffle(false, value, source_lane, mask, where);
}
uint32_t Ballot(bool predicate, uint32_t mask, Where where) {
  const uint32_t in = predicate ? 1 : 0;
  return *static_cast<const uint32_t*>(
      CurrentBlock().Meet(mask, &in, sizeof(in), &CombineBallot, "vote.ballot", where));
}

void CountGlobal(const void* p, size_t bytes, Where where) {
  CheckAddress(p, bytes, "global access", where);
  Block& block = CurrentBlock();
  if (block.accesses == nullptr) return;
  const simt::Unwatched emulator;
  const simt::Thread& t = CurrentThread();
  block.accesses->Global(t.warp, t.lane, reinterpret_cast<uint64_t>(p), static_cast<int>(bytes), where);
}
void CountShared(const void* p, size_t bytes, Where where) {
  Block& block = CurrentBlock();
  const uint32_t offset = block.SharedOffset(p, bytes, bytes, "shared access", where);
  if (block.accesses == nullptr) return;
  const simt::Unwatched emulator;
  const simt::Thread& t = CurrentThread();
  block.accesses->Shared(t.warp, t.lane, offset, static_cast<int>(bytes), where);
}

void CpAsync16(void* dst, const void* src, bool valid, Where where) {
  Block& block = CurrentBlock();
  block.SharedOffset(dst, 16, 16, "cp.async", where);
  if (valid)
    CheckAddress(src, 16, "cp.async source", where);
  else
    CheckAligned(src, 16, "cp.async source", where);
  ++block.counters.cp_async;
  if (block.accesses) {
    const simt::Unwatched emulator;
    const simt::Thread& t = CurrentThread();
    block.accesses->Global(t.warp, t.lane, reinterpret_cast<uint64_t>(src), valid ? 16 : 0, where);
    CountShared(dst, 16, where);
  }
  simt::AsyncCopy copy{dst, src, 16, valid};
  NoteCopy(copy);
  if (!block.policy.lazy()) Perform(copy);
  const simt::Unwatched emulator;
  CurrentThread().open_copies.push_back(copy);
}
void CpAsyncCommit(Where) {
  const simt::Unwatched emulator;
  simt::Thread& t = CurrentThread();
  t.copy_groups.push_back(std::move(t.open_copies));
  t.open_copies.clear();
}
void CpAsyncWaitGroups(size_t pending, Where where) {
  if (simt::SyncSites::LeftOut(where)) return;
  auto& groups = CurrentThread().copy_groups;
  while (groups.size() > pending) {
    for (simt::AsyncCopy& copy : groups.front()) {
      NoteCopy(copy);
      if (!copy.performed) Perform(copy);
    }
    const simt::Unwatched emulator;
    groups.pop_front();
  }
}

void LdMatrixX4(uint32_t (&r)[4], const void* row, Where where) { LoadMatrices<false>(r, row, where); }
void LdMatrixX4Trans(uint32_t (&r)[4], const void* row, Where where) { LoadMatrices<true>(r, row, where); }
void MmaBf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Where where) {
  Mma(d, a, b0, b1, &WarpMma<2, DecodeBf16>, "mma.bf16", where);
}
void MmaF16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Where where) {
  Mma(d, a, b0, b1, &WarpMma<2, DecodeF16>, "mma.f16", where);
}
void MmaE4m3(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Where where) {
  Mma(d, a, b0, b1, &WarpMma<4, DecodeE4m3>, "mma.e4m3", where);
}

uint32_t FmaBf16x2(uint32_t a, uint32_t b, uint32_t c) {
  const F2 x = UnpackBf16(a), y = UnpackBf16(b), z = UnpackBf16(c);
  return PackBf16(std::fma(x.x, y.x, z.x), std::fma(x.y, y.y, z.y));
}

void GridDependencyWait(Where where) {
  Block& block = CurrentBlock();
  block.kernel = where.function_name();
  if (!block.dependency_met) {
    if (simt::SyncSites::LeftOut(where)) return;
    block.WaitUntil({DependencyIsMet, &block, 0, Block::kGridDependency, {}, where});
  }
  simt::NoteAcquire(&block.dependency_met);
}
void GridDependencyRelease(Where where) {
  CurrentThread().released_dependents = true;
  CurrentBlock().WaitUntil({nullptr, nullptr, 0, "griddepcontrol.launch_dependents", {}, where});
}

}  // namespace baton::px
