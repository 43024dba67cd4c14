#include "kernels/simt/block.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>

namespace baton::simt {
namespace {

constexpr size_t kCanaryBytes = 1024;  ///< behind the shared memory; a changed byte is a write past its end
constexpr unsigned char kCanary = 0xA5;
constexpr unsigned char kPoison = 0xFF;  ///< NaN in every float format the kernels use
constexpr size_t kSharedAlignment = 1024;

thread_local Block* current_block = nullptr;
thread_local Thread* current_thread = nullptr;

bool GenerationPassed(const void* barrier, uint64_t generation) {
  return static_cast<const Barrier*>(barrier)->generation != generation;
}
bool Always(const void*, uint64_t) { return true; }

}  // namespace

Block& CurrentBlock() { return *current_block; }
Thread& CurrentThread() { return *current_thread; }
bool InsideKernel() { return current_thread != nullptr; }

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
  threads.resize(n);
  warps.resize((n + kWarpSize - 1) / kWarpSize);
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
}

void Block::Entry() {
  FiberEntered();
  NoteAcquire(&current_block->begun);
  current_block->shape.kernel(current_block->shape.arguments);
  Block& block = *current_block;
  Thread& t = *current_thread;
  for (const auto& group : t.copy_groups)
    if (!group.empty()) block.Fail("a thread exits with cp.async groups in flight", Where::current());
  if (!t.open_copies.empty()) block.Fail("a thread exits with uncommitted cp.async copies", Where::current());
  NoteRelease(&block.ended);
  t.done = true;
  SuspendFiber(t.fiber, true);
  __builtin_trap();
}

std::vector<unsigned char>& Block::AsyncView() {
  if (async_view_.empty()) async_view_.assign(shape.shared_bytes, kPoison);
  return async_view_;
}

void Block::Fail(const std::string& message, Where where) {
  if (error.empty()) error = message + " (" + Line(where) + ", " + Place() + ")";
  SuspendFiber(current_thread->fiber, true);
  __builtin_trap();
}

std::string Block::Place() const {
  std::string s = "block " + std::to_string(index.x) + "," + std::to_string(index.y) + "," + std::to_string(index.z);
  if (current_thread != nullptr) s += " thread " + std::to_string(current_thread->id);
  return s + ", " + PolicyName(policy) + " seed " + std::to_string(policy.seed);
}

bool Block::Runnable(const Thread& t) const {
  if (t.done) return false;
  return t.wait.ready == nullptr || t.wait.ready(t.wait.context, t.wait.value);
}

void Block::Resume(Thread& t) {
  current_block = this;
  current_thread = &t;
  ResumeFiber(t.fiber);
  current_thread = nullptr;
  if (t.done) ThreadEnded(t);
}

/// A barrier over all living threads does not wait for those that ended.
void Block::ThreadEnded(Thread&) {
  --alive;
  auto it = barriers.find(0);
  if (it == barriers.end() || it->second.expected != 0) return;
  if (alive > 0 && it->second.arrived == static_cast<uint32_t>(alive)) Release(it->second);
}

void Block::Release(Barrier& barrier) {
  barrier.arrived = 0;
  barrier.expected = 0;
  ++barrier.generation;
  ++counters.barriers;
}

bool Block::RunWarp(size_t warp, bool until_all_wait) {
  bool progressed = false, again = true;
  const size_t first = warp * kWarpSize, last = std::min(first + kWarpSize, threads.size());
  while (again && error.empty()) {
    again = false;
    for (size_t i = first; i < last && error.empty(); ++i) {
      if (!Runnable(threads[i])) continue;
      Resume(threads[i]);
      again = progressed = true;
    }
    if (!until_all_wait) break;
  }
  return progressed;
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
    return !t.done && t.wait.ready != nullptr && std::strcmp(t.wait.operation, operation) == 0;
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
    for (size_t w : order) progressed |= RunWarp(w, !policy.shuffled() && !stop_early);
    if (!error.empty()) return Stop::kFailed;
    if (stop_early && alive > 0 &&
        std::all_of(threads.begin(), threads.end(), [](const Thread& t) { return t.done || t.released_dependents; }))
      return Stop::kDependentsReleased;
    if (progressed || RunOneBulkCopy()) continue;
    if (!dependency_met && SomeWaitAt(kGridDependency)) return Stop::kAtGridDependency;
    if (alive > 0) {
      error = DeadlockReport();
      return Stop::kFailed;
    }
  }
  NoteAcquire(&ended);
  CheckCanary();
  if (accesses) {
    std::vector<int> lanes(warps.size(), 0);
    for (const Thread& t : threads) ++lanes[t.warp];
    accesses->Finish(counters, lanes);
  }
  return error.empty() ? Stop::kDone : Stop::kFailed;
}

void Block::CheckCanary() {
  for (size_t i = shape.shared_bytes; i < shape.shared_bytes + kCanaryBytes; ++i) {
    if (shared[i] == kCanary) continue;
    if (error.empty())
      error =
          "shared memory written " + std::to_string(i - shape.shared_bytes) + " bytes past its end (" + Place() + ")";
    return;
  }
}

std::string Block::DeadlockReport() const {
  struct Group {
    int count = 0, first = 0;
  };
  std::map<std::string, Group> groups;
  for (const Thread& t : threads) {
    if (t.done) continue;
    std::string at = t.wait.operation;
    if (!t.wait.detail.empty()) at += " " + t.wait.detail;
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

void Block::WaitUntil(Wait wait) {
  const Unwatched emulator;
  Thread& t = *current_thread;
  if (wait.ready == nullptr) wait.ready = Always;
  t.wait = std::move(wait);
  SuspendFiber(t.fiber, false);
  t.wait.ready = nullptr;
}

void* Block::Meet(uint32_t mask, const void* in, size_t bytes, void (*combine)(Block&, Warp&), const char* operation,
                  Where where, bool orders_memory) {
  const Unwatched emulator;
  Thread& t = *current_thread;
  Warp& w = warps[t.warp];
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
  if (bytes > 0) std::memcpy(w.slots[t.lane].bytes, in, bytes);
  w.arrived_lanes |= 1u << t.lane;
  Barrier& b = w.meeting;
  const uint64_t generation = b.generation;
  if (orders_memory) NoteRelease(&b.sync[generation & 1]);
  if (w.arrived_lanes == mask) {
    if (combine != nullptr) combine(*this, w);
    w.arrived_lanes = 0;
    ++b.generation;
  } else {
    WaitUntil({GenerationPassed, &b, generation, operation, {}, where});
  }
  if (orders_memory) NoteAcquire(&b.sync[generation & 1]);
  return w.slots[t.lane].bytes;
}

WarpGroup& Block::CurrentWarpGroup() { return warp_groups[current_thread->warp / 4]; }

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
    WaitUntil({GenerationPassed, &b, generation, operation, {}, where});
  }
}

void Block::BarrierArrive(int id, uint32_t count, Where where) {
  const Unwatched emulator;
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
  Barrier& b = barriers[id];
  const uint64_t generation = b.generation;
  BarrierArrive(id, count, where);
  if (b.generation == generation) {
    const uint32_t needed = count == 0 ? static_cast<uint32_t>(alive) : count;
    WaitUntil({GenerationPassed, &b, generation, count == 0 ? "__syncthreads" : "bar.sync",
               count == 0 ? std::string() : "id " + std::to_string(id) + " of " + std::to_string(needed) + " threads",
               where});
  }
  NoteAcquire(&b.sync[generation & 1]);
}

uint32_t Block::SharedOffset(const void* p, size_t bytes, size_t alignment, const char* operation, Where where) {
  const auto offset = static_cast<const unsigned char*>(p) - shared;
  if (offset < 0 || static_cast<size_t>(offset) + bytes > shape.shared_bytes)
    Fail(std::string(operation) + ": address outside of the block's " + std::to_string(shape.shared_bytes) +
             " bytes of shared memory (offset " + std::to_string(offset) + ")",
         where);
  if (static_cast<size_t>(offset) % alignment != 0)
    Fail(std::string(operation) + ": shared address must be " + std::to_string(alignment) + "-byte aligned", where);
  return static_cast<uint32_t>(offset);
}

}  // namespace baton::simt
