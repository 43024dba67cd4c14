#include "kernels/simt/block.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <thread>

namespace baton::simt {
namespace {

constexpr size_t kCanaryBytes = 1024;  ///< behind the shared memory; a changed byte is a write past its end
constexpr unsigned char kCanary = 0xA5;
constexpr unsigned char kPoison = 0xFF;  ///< NaN in every float format the kernels use
constexpr size_t kSharedAlignment = 1024;

/// Of blocks that have ended: their threads keep the memory of their queues.
thread_local std::vector<std::vector<Thread>> spare_threads __attribute__((tls_model("initial-exec")));

std::vector<Thread> NewThreads(size_t n) {
  std::vector<Thread> threads;
  if (!spare_threads.empty()) {
    threads = std::move(spare_threads.back());
    spare_threads.pop_back();
  }
  threads.resize(n);
  for (Thread& t : threads) {
    CopyQueue copies = std::move(t.copies);
    copies.Clear();
    t = Thread{};
    t.copies = std::move(copies);
  }
  return threads;
}

std::string BarrierDetail(const Wait& wait) {
  return "id " + std::to_string(wait.id) + " of " + std::to_string(wait.needed) + " threads";
}

}  // namespace

// Said again: a definition does not take it from its declaration.
constinit thread_local Running running __attribute__((tls_model("initial-exec")));

std::string Line(const Where& where) {
  const char* slash = std::strrchr(where.file_name(), '/');
  return std::string(slash ? slash + 1 : where.file_name()) + ":" + std::to_string(where.line());
}

Block::Block(const GridShape& shape_in, Index3 index_in, const Policy& policy_in, size_t first_stack)
    : shape(shape_in), index(index_in), policy(policy_in) {
  const Unwatched emulator;
  const unsigned n = shape.block.x * shape.block.y * shape.block.z;
  rng.seed(policy.seed * 1000003 + index.x + 977 * index.y + 7919 * index.z);
  const size_t rounded = (shape.shared_bytes + kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment;
  shared = static_cast<unsigned char*>(std::aligned_alloc(kSharedAlignment, rounded + kCanaryBytes));
  std::memset(shared, kPoison, shape.shared_bytes);
  std::memset(shared + shape.shared_bytes, kCanary, rounded + kCanaryBytes - shape.shared_bytes);
  threads = NewThreads(n);
  warps.resize((n + kWarpSize - 1) / kWarpSize);
  warp_groups.resize((warps.size() + kGroupWarps - 1) / kGroupWarps);
  alive = static_cast<int>(n);
  if (policy.count) accesses = std::make_unique<AccessCounter>();
  NoteRelease(&begun);
  for (unsigned i = 0; i < n; ++i) {
    Thread& t = threads[i];
    t.id = static_cast<int>(i);
    t.lane = t.id % kWarpSize;
    t.warp = t.id / kWarpSize;
    t.index = {i % shape.block.x, i / shape.block.x % shape.block.y, i / (shape.block.x * shape.block.y)};
    t.fiber.stack = PooledStack(first_stack + i);
    StartFiber(t.fiber, &Block::Entry);
  }
}

Block::~Block() {
  const Unwatched emulator;
  for (Thread& t : threads) EndFiber(t.fiber);
  for (const BulkCopy& copy : bulk_copies)
    if (copy.agent != nullptr) EndAgent(copy.agent);
  std::free(shared);
  spare_threads.push_back(std::move(threads));
}

void Block::Entry() {
  FiberEntered();
  Block& block = CurrentBlock();
  NoteAcquire(&block.begun);
  block.shape.kernel(block.shape.arguments);
  Thread& t = CurrentThread();
  if (t.copies.has_in_flight()) block.Fail("a thread exits with cp.async groups in flight", Where::current());
  if (t.copies.has_open()) block.Fail("a thread exits with uncommitted cp.async copies", Where::current());
  const WarpGroup* group = block.warp_groups[static_cast<size_t>(t.warp) / kGroupWarps].get();
  if (group != nullptr && (!group->open.empty() || !group->groups.empty()))
    block.Fail("a thread exits with wgmma in flight", Where::current());
  NoteRelease(&block.ended);
  t.done = true;
  SuspendFiber(t.fiber, true);
  __builtin_trap();
}

void Block::MakeAsyncView() { async_view_.assign(shape.shared_bytes, kPoison); }

void Block::AddStored(const void* p, size_t bytes) {
  const Unwatched emulator;
  running.thread->stored.push_back(
      {static_cast<uint32_t>(static_cast<const unsigned char*>(p) - shared), static_cast<uint32_t>(bytes)});
}

void Block::ShowStores() {
  std::vector<unsigned char>& seen = AsyncView();
  if (!watches_stores_) {
    std::memcpy(seen.data(), shared, seen.size());
    return;
  }
  for (const SharedRange& range : running.thread->stored)
    std::memcpy(seen.data() + range.offset, shared + range.offset, range.bytes);
  running.thread->stored.clear();
}

void Block::Fail(const std::string& message, Where where) {
  if (error.empty()) error = message + " (" + Line(where) + ", " + Place() + ")";
  SuspendFiber(running.thread->fiber, true);
  __builtin_trap();
}

void Block::ShowPeerStores(const Thread* by) {
  std::erase_if(peer_stores, [&](const PeerStore& store) {
    const bool ordered = by == nullptr || store.thread == by->id || store.barriers < barriers[0].generation;
    if (ordered) std::memcpy(store.to, store.bytes, store.size);
    return ordered;
  });
}

std::string Block::Place() const {
  std::string s = "block " + std::to_string(index.x) + "," + std::to_string(index.y) + "," + std::to_string(index.z);
  if (running.thread != nullptr) s += " thread " + std::to_string(running.thread->id);
  return s + ", " + PolicyName(policy) + " seed " + std::to_string(policy.seed);
}

/// A barrier over all living threads does not wait for those that ended.
void Block::ThreadEnded(Thread&) {
  --alive;
  Barrier& all = barriers[0];
  if (all.expected == 0 && alive > 0 && all.arrived == static_cast<uint32_t>(alive)) Release(all);
}

void Block::Release(Barrier& barrier) {
  barrier.arrived = 0;
  barrier.expected = 0;
  ++barrier.generation;
  ++counters.barriers;
}

/// Gives the warp its turn. Threads pass it on to each other where they wait (WaitUntil); here it comes back when none
/// of them can take it, when one ends, and when one fails.
bool Block::RunWarp(size_t warp) {
  Thread* next = NextOf(warp, static_cast<int>(warp * kWarpSize) - 1);
  if (next == nullptr) return false;
  while (next != nullptr && error.empty()) {
    running = {this, next};
    ResumeFiber(next->fiber);
    Thread& last = *running.thread;
    running.thread = nullptr;
    if (last.done) ThreadEnded(last);
    next = NextOf(warp, last.id);
  }
  return true;
}

bool Block::RunOneBulkCopy() {
  if (bulk_copies.empty()) return false;
  const size_t k = rng() % bulk_copies.size();
  const BulkCopy copy = bulk_copies[k];
  bulk_copies.erase(bulk_copies.begin() + static_cast<std::ptrdiff_t>(k));
  copy.complete(*this, copy);
  return true;
}

bool Block::SomeWaitAt(const char* operation) const {
  return std::any_of(threads.begin(), threads.end(), [&](const Thread& t) {
    return !t.done && !t.wait.over() && std::strcmp(t.wait.operation, operation) == 0;
  });
}

Block::Stop Block::Run(bool stop_early) {
  const Unwatched emulator;
  std::vector<size_t> order(warps.size());
  std::iota(order.begin(), order.end(), size_t{0});
  while (alive > 0) {
    bool progressed = false;
    if (policy.shuffled()) {
      std::shuffle(order.begin(), order.end(), rng);
      if (rng() % 4 == 0) progressed = RunOneBulkCopy();
    }
    rounds_ = !policy.shuffled() && !stop_early;
    for (size_t w : order)
      if (error.empty()) progressed |= RunWarp(w);
    if (!error.empty()) return Stop::kFailed;
    if (stop_early && alive > 0 &&
        std::all_of(threads.begin(), threads.end(), [](const Thread& t) { return t.done || t.released_dependents; }))
      return Stop::kDependentsReleased;
    if (progressed || RunOneBulkCopy()) continue;
    if (!dependency_met && SomeWaitAt(kGridDependency)) return Stop::kAtGridDependency;
    if (SomeWaitForADevice()) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      continue;
    }
    if (alive > 0) {
      error = DeadlockReport();
      return Stop::kFailed;
    }
  }
  NoteAcquire(&ended);
  ShowPeerStores(nullptr);
  CheckEnd();
  if (accesses) {
    std::vector<int> lanes(warps.size(), 0);
    for (const Thread& t : threads) ++lanes[t.warp];
    accesses->Finish(counters, lanes);
  }
  return error.empty() ? Stop::kDone : Stop::kFailed;
}

void Block::CheckEnd() {
  if (const std::string left = WhatIsLeft(); error.empty() && !left.empty()) error = left + " (" + Place() + ")";
  CheckCanary();
}

std::string Block::WhatIsLeft() const {
  if (!bulk_copies.empty()) return "the block ends while TMA writes to its shared memory";
  for (size_t w = 0; w < warp_registers.size(); ++w)
    if (warp_registers[w] != warp_registers[w / kGroupWarps * kGroupWarps])
      return "setmaxnreg by some warps of a warpgroup, not by all";
  return {};
}

void Block::CheckCanary() {
  static const std::vector<unsigned char> whole(kCanaryBytes, kCanary);
  if (std::memcmp(shared + shape.shared_bytes, whole.data(), kCanaryBytes) == 0) return;
  for (size_t i = shape.shared_bytes; i < shape.shared_bytes + kCanaryBytes; ++i) {
    if (shared[i] == kCanary) continue;
    if (error.empty())
      error =
          "shared memory written " + std::to_string(i - shape.shared_bytes) + " bytes past its end (" + Place() + ")";
    return;
  }
}

// The wait may be over meanwhile, which nobody of the block has caused.
bool Block::SomeWaitForADevice() const {
  return std::any_of(threads.begin(), threads.end(), [](const Thread& t) {
    return !t.done && t.wait.ready != nullptr && std::strcmp(t.wait.operation, kSystemFlag) == 0;
  });
}

std::string Block::DeadlockReport() const {
  struct Group {
    int count = 0, first = 0;
  };
  std::map<std::string, Group> groups;
  for (const Thread& t : threads) {
    if (t.done) continue;
    std::string at = t.wait.operation;
    if (t.wait.detail != nullptr) at += " " + t.wait.detail(t.wait);
    Group& g = groups[at + " at " + Line(t.wait.where)];
    if (g.count++ == 0) g.first = t.id;
  }
  std::string s = "deadlock:";
  for (const auto& [at, g] : groups)
    s += " " + std::to_string(g.count) + " threads (first " + std::to_string(g.first) + ") wait in " + at + ";";
  const int ended = static_cast<int>(threads.size()) - alive;
  if (ended > 0) s += " " + std::to_string(ended) + " threads have ended;";
  return s + " (" + Place() + ")";
}

/// Every mma, shuffle and vote of every lane comes by here: what it calls is compiled into it.
[[gnu::flatten]] void Block::Meet(uint32_t mask, void* exchanged, void (*combine)(Block&, Warp&), const char* operation,
                                  Where where, bool orders_memory) {
  const Unwatched emulator;
  Thread& t = CurrentThread();
  Warp& w = warps[static_cast<size_t>(t.warp)];
  if (!(mask >> t.lane & 1)) Fail(std::string(operation) + " by a lane that its mask leaves out", where);
  if (w.arrived_lanes == 0) {
    w.operation = operation;
    w.mask = mask;
    w.where = where;
  } else if (w.operation != operation && std::strcmp(w.operation, operation) != 0) {
    Fail(std::string("lanes of one warp meet in different operations: ") + operation + " here, " + w.operation +
             " at " + Line(w.where),
         where);
  } else if (w.mask != mask) {
    Fail(std::string(operation) + ": lanes give different masks (the other at " + Line(w.where) + ")", where);
  }
  w.exchanged[t.lane] = exchanged;
  w.arrived_lanes |= 1u << t.lane;
  Barrier& b = w.meeting;
  const uint64_t generation = b.generation;
  if (orders_memory) NoteRelease(&b.sync[generation & 1]);
  if (w.arrived_lanes == mask) {
    if (combine != nullptr) combine(*this, w);
    w.arrived_lanes = 0;
    ++b.generation;
  } else {
    WaitUntil({.generation = &b.generation, .value = generation, .operation = operation, .where = where});
  }
  if (orders_memory) NoteAcquire(&b.sync[generation & 1]);
}

WarpGroup& Block::CurrentWarpGroup() {
  auto& group = warp_groups[static_cast<size_t>(running.thread->warp) / kGroupWarps];
  if (group == nullptr) group = std::make_unique<WarpGroup>();
  return *group;
}

void Block::MeetWarpGroup(void (*last)(Block&, WarpGroup&, void*), void* context, const char* operation, Where where) {
  const Unwatched emulator;
  WarpGroup& g = CurrentWarpGroup();
  Barrier& b = g.meeting;
  const uint64_t generation = b.generation;
  if (++b.arrived == 128) {
    last(*this, g, context);
    b.arrived = 0;
    ++b.generation;
  } else {
    WaitUntil({.generation = &b.generation, .value = generation, .operation = operation, .where = where});
  }
}

void Block::BarrierArrive(int id, uint32_t count, Where where) {
  const Unwatched emulator;
  if (id < 0 || id >= kNamedBarriers) Fail("barrier " + std::to_string(id) + ": there are 0 to 15", where);
  Barrier& b = barriers[id];
  if (count % kWarpSize != 0) Fail("named barrier count " + std::to_string(count) + " is not a multiple of 32", where);
  if (b.arrived > 0 && b.expected != count)
    Fail("barrier " + std::to_string(id) + " used with counts " + std::to_string(count) + " and " +
             std::to_string(b.expected),
         where);
  b.expected = count;
  NoteRelease(&b.sync[b.generation & 1]);
  const uint32_t needed = count == 0 ? static_cast<uint32_t>(alive) : count;
  if (++b.arrived == needed) Release(b);
}

void Block::BarrierSync(int id, uint32_t count, Where where) {
  const Unwatched emulator;
  // Asked before the arrival, which refuses an id that is none.
  const uint64_t generation = barriers[id & (kNamedBarriers - 1)].generation;
  BarrierArrive(id, count, where);
  Barrier& b = barriers[id];
  if (b.generation == generation)
    WaitUntil({.generation = &b.generation,
               .value = generation,
               .operation = count == 0 ? "__syncthreads" : "bar.sync",
               .detail = count == 0 ? nullptr : &BarrierDetail,
               .id = id,
               .needed = count,
               .where = where});
  NoteAcquire(&b.sync[generation & 1]);
}

void Block::FailShared(const void* p, size_t bytes, size_t alignment, const char* operation, Where where) {
  const auto offset = static_cast<const unsigned char*>(p) - shared;
  if (offset < 0 || static_cast<size_t>(offset) + bytes > shape.shared_bytes)
    Fail(std::string(operation) + ": address outside of the block's " + std::to_string(shape.shared_bytes) +
             " bytes of shared memory (offset " + std::to_string(offset) + ")",
         where);
  Fail(std::string(operation) + ": shared address must be " + std::to_string(alignment) + "-byte aligned", where);
}

}  // namespace baton::simt
