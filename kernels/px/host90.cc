#include "kernels/px/host90.h"

#include <algorithm>
#include <memory>

#include "kernels/px/tile_product.h"

namespace baton::px {
namespace {

using simt::Block;
using simt::BulkCopy;
using simt::CurrentBlock;
using simt::MBarrier;
using simt::WarpGroup;
using simt::WarpGroupMma;

constexpr int kRowBytes = kTmaBoxColumns * 2;
constexpr uint32_t kPatternBytes = 8 * kRowBytes;  ///< after which the swizzle begins anew
/// An mbarrier counts so many bytes and arrivals at most (PTX ISA, "Contents of the mbarrier object").
constexpr int64_t kMostOfMbarrier = (1 << 20) - 1;

/// 128-byte swizzle: 16-byte chunk index XOR row % 8, on the address itself.
uint32_t Swizzle128(uint32_t offset) { return offset ^ ((offset >> 7 & 7u) << 4); }

MBarrier& Find(uint64_t* barrier, const char* operation, Where where) {
  Block& block = CurrentBlock();
  auto it = block.mbarriers.find(block.SharedOffset(barrier, 8, 8, operation, where));
  if (it == block.mbarriers.end())
    block.Fail(std::string(operation) + " on an mbarrier that was not initialized", where);
  return it->second;
}

void CompletePhase(MBarrier& m) {
  if (m.pending != 0 || m.pending_bytes != 0) return;
  ++m.phase;
  m.pending = m.count;
}

void Arrive(uint64_t* barrier, int64_t bytes, const char* operation, Where where) {
  const simt::Unwatched emulator;
  MBarrier& m = Find(barrier, operation, where);
  if (m.pending == 0) CurrentBlock().Fail(std::string(operation) + ": more arrivals than the mbarrier expects", where);
  simt::NoteRelease(&m.sync[m.phase & 1]);
  m.pending_bytes += bytes;
  if (m.pending_bytes > kMostOfMbarrier)
    CurrentBlock().Fail(std::string(operation) + ": " + std::to_string(m.pending_bytes) +
                            " bytes are awaited, an mbarrier counts " + std::to_string(kMostOfMbarrier),
                        where);
  --m.pending;
  CompletePhase(m);
}

bool PhaseCompleted(const void* context, uint64_t parity) {
  return (static_cast<const MBarrier*>(context)->phase & 1) != parity;
}

std::string WhatPhaseLacks(const simt::Wait& wait) {
  const auto& m = *static_cast<const MBarrier*>(wait.context);
  return "parity " + std::to_string(wait.value) + ", " + std::to_string(m.pending) + " arrivals and " +
         std::to_string(m.pending_bytes) + " bytes missing";
}

void CompleteTma(Block& block, const BulkCopy& copy) {
  TensorMap2D map;
  std::memcpy(&map, copy.tensor, sizeof(map));
  constexpr int kChunk = 8;  // columns that the swizzle keeps together
  unsigned char* const seen = block.AsyncView().data();
  for (int r = 0; r < map.box_rows; ++r) {
    const int row = copy.y + r;
    const bool row_inside = row >= 0 && row < map.rows;
    for (int c = 0; c < kTmaBoxColumns; c += kChunk) {
      const int first = copy.x + c;
      bf16 values[kChunk] = {};
      if (row_inside) {
        const bf16* from = map.base + static_cast<size_t>(row) * map.row_stride;
        const int begin = std::clamp(-first, 0, kChunk), end = std::clamp(map.columns - first, begin, kChunk);
        std::copy(from + first + begin, from + first + end, values + begin);
      }
      const uint32_t offset = Swizzle128(copy.dst + static_cast<uint32_t>(r * kRowBytes + c * 2));
      std::memcpy(block.shared + offset, values, sizeof(values));
      std::memcpy(seen + offset, values, sizeof(values));
    }
  }
  MBarrier& m = block.mbarriers[copy.barrier];
  if (copy.agent != nullptr) {
    simt::AsAgent(copy.agent, [](void* sync) { simt::NoteRelease(sync); }, &m.sync[m.phase & 1]);
    simt::EndAgent(copy.agent);
  }
  m.pending_bytes -= static_cast<int64_t>(map.box_rows) * kRowBytes;
  CompletePhase(m);
}

/// What a copy reads and writes, for ThreadSanitizer: from its issue on.
struct TmaAccesses {
  const Block& block;
  const TensorMap2D& map;
  const BulkCopy& copy;
  static void Note(void* self) {
    const auto& [block, map, copy] = *static_cast<TmaAccesses*>(self);
    simt::NoteWrite(block.shared + copy.dst, static_cast<size_t>(map.box_rows) * kRowBytes);
    const int first = std::max(copy.x, 0), last = std::min(copy.x + kTmaBoxColumns, map.columns);
    for (int row = std::max(copy.y, 0); row < std::min(copy.y + map.box_rows, map.rows) && first < last; ++row)
      simt::NoteRead(map.base + static_cast<size_t>(row) * map.row_stride + first, (last - first) * sizeof(bf16));
  }
};

/// Where byte `byte` of a row of an operand tile lies in shared memory, addressed as the hardware does from the
/// descriptor's fields.
uint32_t OperandOffset(uint64_t descriptor, int row, int byte) {
  const auto start = static_cast<uint32_t>(descriptor & 0x3FFF) << 4;
  const auto stride = static_cast<uint32_t>(descriptor >> 32 & 0x3FFF) << 4;  // between groups of 8 rows
  return Swizzle128(start + static_cast<uint32_t>(row >> 3) * stride +
                    static_cast<uint32_t>((row & 7) * kRowBytes + byte));
}

constexpr int kWgmmaRows = 64, kWgmmaDepthBytes = 32;
constexpr int kChunkBytes = 16;  // that stay together
int DepthOf(const WarpGroupMma& op) { return op.e4m3 ? kWgmmaDepthBytes : kWgmmaDepthBytes / 2; }

/// Row `row` of an operand, `count` elements, whole chunks; element i goes to to[i * stride].
template <typename T>
void ReadOperand(const Block& block, uint64_t descriptor, int row, int count, float* to, int stride) {
  constexpr int kOfChunk = kChunkBytes / static_cast<int>(sizeof(T));
  for (int i = 0; i < count; i += kOfChunk) {
    T chunk[kOfChunk];
    std::memcpy(chunk, block.shared + OperandOffset(descriptor, row, i * static_cast<int>(sizeof(T))), kChunkBytes);
    for (int j = 0; j < kOfChunk; ++j) to[(i + j) * stride] = ToFloat(chunk[j]);
  }
}
/// The operands in shared memory of a wgmma whose both are there: a[64][depth], b[depth][n].
template <typename T>
void ReadOperands(const Block& block, const WarpGroupMma& op, float* a, float* b) {
  const int depth = DepthOf(op);
  for (int r = 0; r < kWgmmaRows; ++r) ReadOperand<T>(block, op.a_descriptor, r, depth, a + r * depth, 1);
  for (int n = 0; n < op.n; ++n) ReadOperand<T>(block, op.b_descriptor, n, depth, b + n, op.n);
}

/// Calls visit(offset) for each 16 bytes of shared memory that a wgmma reads.
template <typename Visit>
void ForOperands(const WarpGroupMma& op, Visit&& visit) {
  auto chunks = [&](uint64_t descriptor, int rows, int bytes) {
    for (int row = 0; row < rows; ++row)
      for (int byte = 0; byte < bytes; byte += kChunkBytes) visit(OperandOffset(descriptor, row, byte));
  };
  if (op.a_in_registers) {
    chunks(op.b_descriptor, DepthOf(op), op.n * 2);
  } else {
    chunks(op.a_descriptor, kWgmmaRows, kWgmmaDepthBytes);
    chunks(op.b_descriptor, op.n, kWgmmaDepthBytes);
  }
}

/// Fails where an operand does not begin in the first row of a pattern of the swizzle, or runs out of the row: the
/// descriptor has no offset of the pattern (its base offset is 0).
void CheckPlace(Block& block, const WarpGroupMma& op, Where where) {
  const auto check = [&](uint64_t descriptor, int bytes) {
    const auto start = static_cast<uint32_t>(descriptor & 0x3FFF) << 4;
    if (start % kPatternBytes + static_cast<uint32_t>(bytes) > kRowBytes)
      block.Fail("wgmma of an operand at " + std::to_string(start % kPatternBytes) + " of 1,024 bytes of the swizzle",
                 where);
  };
  if (!op.a_in_registers) check(op.a_descriptor, kWgmmaDepthBytes);
  check(op.b_descriptor, op.a_in_registers ? op.n * 2 : kWgmmaDepthBytes);
}

/// Fails where an operand has bytes that a thread wrote and no fence.proxy.async has shown to wgmma.
void CheckFenced(Block& block, const WarpGroupMma& op, Where where) {
  const std::vector<unsigned char>& seen = block.AsyncView();
  ForOperands(op, [&](uint32_t at) {
    if (at + kChunkBytes <= seen.size() && std::memcmp(block.shared + at, seen.data() + at, kChunkBytes) != 0)
      block.Fail("wgmma reads shared memory that a thread wrote, without a fence.proxy.async between", where);
  });
}

/// The operands that a wgmma reads, for ThreadSanitizer: from its issue on. (Accumulators read in flight are found by
/// the lazy policies.)
struct WgmmaAccesses {
  const Block& block;
  WarpGroup& group;
  static void Note(void* self) {
    const auto& [block, group] = *static_cast<WgmmaAccesses*>(self);
    simt::NoteAcquire(&group.issued);
    ForOperands(group.next, [&](uint32_t at) { simt::NoteRead(block.shared + at, kChunkBytes); });
  }
};

/// The rows that a warpgroup's registers hold, each warp 16 as mma.sync has them.
void ReadRegisters(const WarpGroupMma& op, float* a) {
  for (int t = 0; t < 128; ++t)
    for (int i = 0; i < 8; ++i) {
      const int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, k = t % 4 * 2 + i / 4 * 8 + i % 2;
      a[row * DepthOf(op) + k] = Bf16BitsToFloat(static_cast<uint16_t>(op.a_registers[t][i / 2] >> (i % 2 * 16)));
    }
}

/// Of one wgmma: too much for a fiber's stack.
struct WgmmaTiles {
  static constexpr int kMostColumns = 256, kMostDepth = kWgmmaDepthBytes;
  alignas(32) float a[kWgmmaRows * kMostDepth], b[kMostDepth * kMostColumns], product[kWgmmaRows * kMostColumns];
};

void Execute(Block& block, const WarpGroupMma& op) {
  thread_local const std::unique_ptr<WgmmaTiles> tiles __attribute__((tls_model("initial-exec"))) =
      std::make_unique<WgmmaTiles>();
  auto& [a, b, product] = *tiles;
  const int depth = DepthOf(op);
  if (op.a_in_registers) {
    ReadRegisters(op, a);
    for (int k = 0; k < depth; ++k) ReadOperand<bf16>(block, op.b_descriptor, k, op.n, b + k * op.n, 1);
  } else if (op.e4m3) {
    ReadOperands<e4m3>(block, op, a, b);
  } else {
    ReadOperands<bf16>(block, op, a, b);
  }
  if (block.policy.odd_wgmma == op.n) ReverseDepth(a, b, kWgmmaRows, depth, op.n);
  TileProduct(a, b, product, kWgmmaRows, depth, op.n);
  for (int t = 0; t < 128; ++t) {
    const int warp = t / 32, g = t % 32 / 4, c = t % 4 * 2;
    for (int i = 0; i < op.n / 2; ++i) {
      const int r = 16 * warp + g + 8 * (i / 2 % 2), n = i / 4 * 8 + c + i % 2;
      op.accumulators[t][i] = (op.accumulate ? op.accumulators[t][i] : 0.0f) + product[r * op.n + n];
    }
  }
  ++block.counters.mma;
}

}  // namespace

void MbarrierInit(uint64_t* barrier, int arrivals, Where where) {
  const simt::Unwatched emulator;
  Block& block = CurrentBlock();
  block.WatchStores();
  const uint32_t at = block.SharedOffset(barrier, 8, 8, "mbarrier.init", where);
  if (arrivals < 1 || arrivals > kMostOfMbarrier || block.mbarriers.contains(at))
    block.Fail("mbarrier.init of " + std::to_string(arrivals) + " arrivals, where " +
                   (block.mbarriers.contains(at) ? "an mbarrier is" : "none is"),
               where);
  MBarrier& m = block.mbarriers[at];
  m.count = m.pending = static_cast<uint32_t>(arrivals);
}
void MbarrierFenceInit(Where where) {
  if (simt::SyncSites::LeftOut(where)) return;
  for (auto& [offset, m] : CurrentBlock().mbarriers) m.fenced = true;
}
void FenceAsyncProxy(Where where) {
  const simt::Unwatched emulator;
  if (simt::SyncSites::LeftOut(where)) return;
  CurrentBlock().ShowStores();
}
void MbarrierArrive(uint64_t* barrier, Where where) {
  if (!simt::SyncSites::LeftOut(where)) Arrive(barrier, 0, "mbarrier.arrive", where);
}
void MbarrierArriveExpect(uint64_t* barrier, int bytes, Where where) {
  Arrive(barrier, bytes, "mbarrier.arrive.expect_tx", where);
}
void MbarrierWait(uint64_t* barrier, uint32_t parity, Where where) {
  const simt::Unwatched emulator;
  if (simt::SyncSites::LeftOut(where)) return;
  MBarrier& m = Find(barrier, "mbarrier.try_wait", where);
  if (!PhaseCompleted(&m, parity)) {
    CurrentBlock().WaitUntil({.value = parity,
                              .ready = PhaseCompleted,
                              .context = &m,
                              .operation = "mbarrier.try_wait",
                              .detail = WhatPhaseLacks,
                              .where = where});
  }
  simt::NoteAcquire(&m.sync[parity]);
}

void TmaLoad2D(void* dst, const TensorMap2D* map, int column, int row, uint64_t* barrier, Where where) {
  const simt::Unwatched emulator;
  Block& block = CurrentBlock();
  BulkCopy copy;
  copy.complete = &CompleteTma;
  static_assert(sizeof(*map) <= sizeof(copy.tensor));
  std::memcpy(copy.tensor, map, sizeof(*map));
  copy.x = column;
  copy.y = row;
  copy.dst = block.SharedOffset(dst, static_cast<size_t>(map->box_rows) * kRowBytes, 1024, "TMA", where);
  copy.barrier = block.SharedOffset(barrier, 8, 8, "TMA", where);
  if (!Find(barrier, "TMA", where).fenced)
    block.Fail("TMA names an mbarrier whose initialization has not been fenced", where);
  copy.agent = simt::BeginAgent();
  TmaAccesses accesses{block, *map, copy};
  simt::AsAgent(copy.agent, &TmaAccesses::Note, &accesses);
  if (block.policy.lazy())
    block.bulk_copies.push_back(copy);
  else
    CompleteTma(block, copy);
}

uint64_t WgmmaDescriptor(const void* tile, Where where) {
  const uint32_t offset = CurrentBlock().SharedOffset(tile, 16, kPatternBytes, "wgmma descriptor", where);
  constexpr uint64_t kGroupStride = kPatternBytes, kSwizzle128 = 1;
  return (offset & 0x3FFFFu) >> 4 | 1ull << 16 | (kGroupStride >> 4) << 32 | kSwizzle128 << 62;
}
void MoveRegisters(int registers, bool more, Where where) {
  const simt::Unwatched emulator;
  Block& block = CurrentBlock();
  if (block.warp_registers.empty()) {
    constexpr int kOfMultiprocessor = 65536, kUnit = 8, kMost = 256;
    const int each = kOfMultiprocessor / static_cast<int>(block.threads.size()) / kUnit * kUnit;
    block.warp_registers.assign(block.warps.size(), std::min(each, kMost));
  }
  const int warp = simt::CurrentThread().warp, has = block.warp_registers[warp];
  if (static_cast<size_t>(warp) / Block::kGroupWarps >= block.warps.size() / Block::kGroupWarps)
    block.Fail("setmaxnreg by a warp of no whole warpgroup", where);
  if (more ? registers < has : registers > has)
    block.Fail(std::string("setmaxnreg.") + (more ? "inc" : "dec") + " to " + std::to_string(registers) +
                   " registers by a warp that has " + std::to_string(has),
               where);
  constexpr int kWarpShift = 16;
  const auto ready = [](const void* context, uint64_t wanted) {
    const Block& of = *static_cast<const Block*>(context);
    const int has = of.warp_registers[wanted >> kWarpShift], wants = static_cast<int>(wanted & 0xFFFF);
    return wants - has <= of.free_registers || has == wants;  // another lane took them
  };
  const uint64_t wanted = static_cast<uint64_t>(warp) << kWarpShift | static_cast<unsigned>(registers);
  if (!ready(&block, wanted))
    block.WaitUntil(
        {.value = wanted, .ready = ready, .context = &block, .operation = "setmaxnreg.inc", .where = where});
  block.free_registers -= registers - block.warp_registers[warp];
  block.warp_registers[warp] = registers;
}
uint64_t WgmmaRowsDescriptor(const void* tile, Where where) { return WgmmaDescriptor(tile, where); }
void WgmmaFence(Where where) {
  if (simt::SyncSites::LeftOut(where)) return;
  CurrentBlock().MeetWarpGroup([](Block&, WarpGroup& g, void*) { g.fenced = true; }, nullptr, "wgmma.fence", where);
}
void WgmmaCommit(Where where) {
  CurrentBlock().MeetWarpGroup(
      [](Block&, WarpGroup& g, void*) {
        g.groups.push_back(std::move(g.open));
        g.open.clear();
        if (g.agent != nullptr)
          simt::AsAgent(g.agent, [](void* sync) { simt::NoteRelease(sync); }, &g.sync[g.committed % WarpGroup::kSyncs]);
        ++g.committed;
      },
      nullptr, "wgmma.commit_group", where);
}
void WgmmaWaitGroups(size_t pending, Where where) {
  if (simt::SyncSites::LeftOut(where)) return;
  CurrentBlock().MeetWarpGroup(
      [](Block& block, WarpGroup& g, void* context) {
        while (g.groups.size() > *static_cast<size_t*>(context)) {
          for (const WarpGroupMma& op : g.groups.front()) Execute(block, op);
          g.groups.pop_front();
          ++g.completed;
        }
        g.fenced = false;  // from here on the accumulators may be touched
      },
      &pending, "wgmma.wait_group", where);
  WarpGroup& g = CurrentBlock().CurrentWarpGroup();
  if (g.completed > 0) simt::NoteAcquire(&g.sync[(g.completed - 1) % WarpGroup::kSyncs]);
}
namespace {
/// This thread's part of the warpgroup's next wgmma.
WarpGroupMma& NextWgmma(float* d, Where where) {
  Block& block = CurrentBlock();
  WarpGroup& group = block.CurrentWarpGroup();
  if (!group.fenced) block.Fail("wgmma.mma_async without a wgmma.fence before it", where);
  group.next.accumulators[simt::CurrentThread().id % 128] = d;
  return group.next;
}
void IssueNext(Where where) {
  Block& block = CurrentBlock();
  simt::NoteRelease(&block.CurrentWarpGroup().issued);
  block.MeetWarpGroup(
      [](Block& owner, WarpGroup& g, void* issued_at) {
        CheckPlace(owner, g.next, *static_cast<Where*>(issued_at));
        CheckFenced(owner, g.next, *static_cast<Where*>(issued_at));
        if (g.agent == nullptr) g.agent = simt::BeginAgent();
        WgmmaAccesses accesses{owner, g};
        simt::AsAgent(g.agent, &WgmmaAccesses::Note, &accesses);
        if (owner.policy.lazy())
          g.open.push_back(g.next);
        else
          Execute(owner, g.next);
      },
      &where, "wgmma.mma_async", where);
}
}  // namespace

void WgmmaIssue(float* d, int n, uint64_t a, uint64_t b, bool accumulate, Where where, bool e4m3) {
  const simt::Unwatched emulator;
  WarpGroupMma& next = NextWgmma(d, where);
  next.a_in_registers = false;
  next.e4m3 = e4m3;
  next.a_descriptor = a;
  next.b_descriptor = b;
  next.n = n;
  next.accumulate = accumulate;
  IssueNext(where);
}
void WgmmaIssueRows(float* d, const uint32_t (&a)[4], uint64_t b, Where where) {
  const simt::Unwatched emulator;
  WarpGroupMma& next = NextWgmma(d, where);
  next.a_in_registers = true;
  next.e4m3 = false;
  next.a_registers[simt::CurrentThread().id % 128] = a;
  next.b_descriptor = b;
  next.n = 64;
  next.accumulate = true;
  IssueNext(where);
}

}  // namespace baton::px
