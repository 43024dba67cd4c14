#include "kernels/px/host.h"

#include <array>

#include "kernels/px/tile_product.h"

namespace baton::px {
namespace {

using simt::Block;
using simt::CurrentBlock;
using simt::CurrentThread;
using simt::Warp;

/// What lane `lane` of a meeting exchanges.
template <typename T>
T& Exchanged(const Warp& w, int lane) {
  return *static_cast<T*>(w.exchanged[lane]);
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

struct MatrixExchange {
  uint16_t row[8];
  uint32_t* out;  ///< four words
};

template <bool kTransposed>
void DistributeMatrices(Block& block, Warp& w) {
  const uint16_t* rows[32];
  for (int lane = 0; lane < 32; ++lane) rows[lane] = Exchanged<MatrixExchange>(w, lane).row;
  for (int lane = 0; lane < 32; ++lane) {
    const int q = lane >> 2, t = lane & 3;
    uint32_t* out = Exchanged<MatrixExchange>(w, lane).out;
    for (int j = 0; j < 4; ++j) {
      const uint16_t* const* matrix = rows + 8 * j;
      const uint32_t lo = kTransposed ? matrix[2 * t][q] : matrix[q][2 * t];
      const uint32_t hi = kTransposed ? matrix[2 * t + 1][q] : matrix[q][2 * t + 1];
      out[j] = lo | hi << 16;
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
  MatrixExchange exchange;
  std::memcpy(exchange.row, row, 16);
  exchange.out = r;
  block.Meet(kFullMask, &exchange, &DistributeMatrices<kTransposed>, kTransposed ? "ldmatrix.trans" : "ldmatrix",
             where);
}

struct MmaExchange {
  const uint32_t* a;
  uint32_t b[2];
  float* d;  ///< changed in place
};

float DecodeBf16(uint32_t word, int i) { return Bf16BitsToFloat(word >> (16 * i) & 0xFFFFu); }
float DecodeF16(uint32_t word, int i) { return F16BitsToFloat(word >> (16 * i) & 0xFFFFu); }
float DecodeE4m3(uint32_t word, int i) { return E4m3BitsToFloat(word >> (8 * i) & 0xFFu); }

/// The fragment layout is the same for 16-bit (2 per register) and 8-bit (4 per register) elements.
template <int kPerRegister, float (*kDecode)(uint32_t, int)>
void WarpMma(Block& block, Warp& w) {
  constexpr int kDepth = 8 * kPerRegister;
  float a[16][kDepth];
  alignas(32) float b[kDepth][8];
  for (int lane = 0; lane < 32; ++lane) {
    const MmaExchange& s = Exchanged<MmaExchange>(w, lane);
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
  alignas(32) float product[16][8];
  TileProduct(a[0], b[0], product[0], 16, kDepth, 8);
  if (block.policy.odd_mma) {
    ReverseDepth(a[0], b[0], 16, kDepth, 8);
    TileProduct(a[8], b[0], product[8], 8, kDepth, 8);
  }
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane >> 2, t = (lane & 3) * 2;
    float* d = Exchanged<MmaExchange>(w, lane).d;
    for (int i = 0; i < 4; ++i) d[i] += product[g + 8 * (i >> 1)][t + (i & 1)];
  }
  ++block.counters.mma;
}

void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, void (*combine)(Block&, Warp&),
         const char* operation, Where where) {
  MmaExchange exchange{a, {b0, b1}, d};
  CurrentBlock().Meet(kFullMask, &exchange, combine, operation, where);
}

struct ShuffleExchange {
  uint32_t value;
  int argument;
};
template <bool kXor>
void CombineShuffle(Block& block, Warp& w) {
  std::array<uint32_t, 32> values{};
  for (int l = 0; l < 32; ++l)
    if (w.mask >> l & 1) values[l] = Exchanged<ShuffleExchange>(w, l).value;
  for (int l = 0; l < 32; ++l) {
    if (!(w.mask >> l & 1)) continue;
    ShuffleExchange& s = Exchanged<ShuffleExchange>(w, l);
    s.value = values[(kXor ? l ^ s.argument : s.argument) & 31];
  }
  ++block.counters.shuffles;
}
void CombineBallot(Block& block, Warp& w) {
  uint32_t bits = 0;
  for (int l = 0; l < 32; ++l)
    if ((w.mask >> l & 1) && Exchanged<uint32_t>(w, l) != 0) bits |= 1u << l;
  for (int l = 0; l < 32; ++l)
    if (w.mask >> l & 1) Exchanged<uint32_t>(w, l) = bits;
  ++block.counters.shuffles;
}

uint32_t DoShuffle(bool by_xor, uint32_t value, int argument, uint32_t mask, Where where) {
  const int lane = CurrentThread().lane, source = (by_xor ? lane ^ argument : argument) & 31;
  if (!(mask >> source & 1))
    CurrentBlock().Fail("shuffle reads lane " + std::to_string(source) + ", which is not in the mask", where);
  ShuffleExchange exchange{value, argument};
  CurrentBlock().Meet(mask, &exchange, by_xor ? &CombineShuffle<true> : &CombineShuffle<false>,
                      by_xor ? "shfl.bfly" : "shfl.idx", where);
  return exchange.value;
}

struct FlagWait {
  const uint32_t *flag, *stop;
  uint32_t least;
};
bool FlagIsThere(const void* context, uint64_t) {
  const auto& wait = *static_cast<const FlagWait*>(context);
  return static_cast<int32_t>(__atomic_load_n(wait.flag, __ATOMIC_ACQUIRE) - wait.least) >= 0 ||
         __atomic_load_n(wait.stop, __ATOMIC_ACQUIRE) != 0;
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
  if (!simt::SyncSites::LeftOut(where)) CurrentBlock().Meet(mask, nullptr, nullptr, "__syncwarp", where, true);
}
uint32_t ShuffleXorBits(uint32_t value, int lane_mask, uint32_t mask, Where where) {
  return DoShuffle(true, value, lane_mask, mask, where);
}
uint32_t ShuffleBits(uint32_t value, int source_lane, uint32_t mask, Where where) {
  return DoShuffle(false, value, source_lane, mask, where);
}
uint32_t Ballot(bool predicate, uint32_t mask, Where where) {
  uint32_t exchanged = predicate ? 1 : 0;
  CurrentBlock().Meet(mask, &exchanged, &CombineBallot, "vote.ballot", where);
  return exchanged;
}

void FailGlobal(const void* p, size_t bytes, const char* what, Where where) {
  if (reinterpret_cast<uintptr_t>(p) % bytes != 0)
    CurrentBlock().Fail(std::string(what) + " of " + std::to_string(bytes) + " bytes at a misaligned address", where);
  CurrentBlock().Fail(std::string(what) + " of memory that is not the device's", where);
}
void CountAccess(bool shared, const void* p, size_t bytes, Where where) {
  const simt::Unwatched emulator;
  Block& block = CurrentBlock();
  const simt::Thread& t = CurrentThread();
  if (shared)
    block.accesses->Shared(t.warp, t.lane, block.SharedOffset(p, bytes, bytes, "shared access", where),
                           static_cast<int>(bytes), where);
  else
    block.accesses->Global(t.warp, t.lane, reinterpret_cast<uint64_t>(p), static_cast<int>(bytes), where);
}

void CpAsync16(void* dst, const void* src, bool valid, Where where) {
  Block& block = CurrentBlock();
  block.SharedOffset(dst, 16, 16, "cp.async", where);
  if (valid ? !MayTouch(src, 16) : reinterpret_cast<uintptr_t>(src) % 16 != 0)
    FailGlobal(src, 16, "cp.async source", where);
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
  CurrentThread().copies.Add(copy);
}
void CpAsyncCommit(Where) {
  const simt::Unwatched emulator;
  CurrentThread().copies.Commit();
}
void CpAsyncWaitGroups(size_t pending, Where where) {
  if (simt::SyncSites::LeftOut(where)) return;
  simt::CopyQueue& copies = CurrentThread().copies;
  while (copies.groups() > pending) {
    copies.FinishOldest([](simt::AsyncCopy& copy) {
      NoteCopy(copy);
      if (!copy.performed) Perform(copy);
      CurrentBlock().NoteStored(copy.dst, static_cast<size_t>(copy.bytes));
    });
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

void StorePeerBytes(void* p, const void* value, size_t bytes, Where where) {
  const simt::Unwatched emulator;
  Block& block = CurrentBlock();
  if (reinterpret_cast<uintptr_t>(p) % bytes != 0 || !simt::IsPeerMemory(p, bytes))
    FailGlobal(p, bytes, "store to a peer", where);
  if (block.accesses != nullptr) CountAccess(false, p, bytes, where);
  simt::PeerStore store{.to = p,
                        .size = static_cast<uint8_t>(bytes),
                        .thread = CurrentThread().id,
                        .barriers = block.barriers[0].generation};
  std::memcpy(block.policy.lazy() ? store.bytes : p, value, bytes);
  if (block.policy.lazy()) block.peer_stores.push_back(store);
}
void FenceSystem(Where where) {
  if (simt::SyncSites::LeftOut(where)) return;
  const simt::Unwatched emulator;
  CurrentBlock().ShowPeerStores(&CurrentThread());
}
void StoreSystem(uint32_t* p, uint32_t v, Where where) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof(v) != 0 || !simt::IsPeerMemory(p, sizeof(v)))
    FailGlobal(p, sizeof(v), "flag of a peer", where);
  __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
void WaitSystem(const uint32_t* flag, uint32_t least, const uint32_t* stop, Where where) {
  CountGlobal(flag, sizeof(*flag), where);
  CountGlobal(stop, sizeof(*stop), where);
  if (simt::SyncSites::LeftOut(where)) return;
  const FlagWait wait{flag, stop, least};
  CurrentBlock().WaitUntil({.ready = FlagIsThere, .context = &wait, .operation = Block::kSystemFlag, .where = where});
  static_cast<void>(FlagIsThere(&wait, 0));  // acquires on the thread's own behalf
}

void GridDependencyWait(Where where) {
  Block& block = CurrentBlock();
  block.kernel = where.function_name();
  if (!block.dependency_met) {
    if (simt::SyncSites::LeftOut(where)) return;
    block.WaitUntil({.ready = DependencyIsMet, .context = &block, .operation = Block::kGridDependency, .where = where});
  }
  simt::NoteAcquire(&block.dependency_met);
}
void GridDependencyRelease(Where where) {
  CurrentThread().released_dependents = true;
  CurrentBlock().WaitUntil({.operation = "griddepcontrol.launch_dependents", .where = where});
}

}  // namespace baton::px
