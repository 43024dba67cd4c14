// One thread block under emulation: threads as fibers, warps, barriers, shared memory, asynchronous copies.
//
// Everything here belongs to one OS thread. Kernel code reaches it through px only; `CurrentBlock()` and
// `CurrentThread()` are set while a kernel runs. Any misuse of the machine ends the grid with a message (Fail), it does
// not end the process, so that tests can plant bugs and see them found.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <source_location>
#include <string>
#include <vector>

#include "kernels/simt/counters.h"
#include "kernels/simt/fiber.h"
#include "kernels/simt/policy.h"

namespace baton::simt {

using Where = std::source_location;

struct Index3 {
  unsigned x = 1, y = 1, z = 1;
};

/// What a waiting thread waits for: *generation is no longer `value`, or ready(context, value) turns true.
struct Wait {
  const uint64_t* generation = nullptr;
  uint64_t value = 0;
  bool (*ready)(const void* context, uint64_t value) = nullptr;
  const void* context = nullptr;
  const char* operation = "";
  std::string (*detail)(const Wait& wait) = nullptr;  ///< "id 3 of 64 threads"; null: nothing to say
  int id = 0;
  uint32_t needed = 0;
  Where where;
  bool over() const { return generation != nullptr ? *generation != value : ready == nullptr || ready(context, value); }
};

/// A cp.async: 16 (or 4, 8) bytes, zero-filled when the source is switched off.
struct AsyncCopy {
  void* dst;
  const void* src;
  int bytes;
  bool valid;
  bool performed = false;
};

/// A thread's cp.async copies in order of issue, in groups. Keeps its memory from block to block.
class CopyQueue {
 public:
  void Add(const AsyncCopy& copy) { copies_.push_back(copy); }
  void Commit() { ends_.push_back(copies_.size()); }
  size_t groups() const { return ends_.size() - first_group_; }
  bool has_open() const { return (ends_.empty() ? first_copy_ : ends_.back()) < copies_.size(); }
  bool has_in_flight() const { return !ends_.empty() && first_copy_ < ends_.back(); }
  /// Calls perform(copy) for the oldest group's copies, and forgets the group.
  template <typename Perform>
  void FinishOldest(Perform&& perform) {
    for (const size_t end = ends_[first_group_++]; first_copy_ < end; ++first_copy_) perform(copies_[first_copy_]);
    if (first_copy_ == copies_.size() && first_group_ == ends_.size()) Clear();
    if (first_copy_ >= kForgotten) Forget();
  }
  void Clear() {
    copies_.clear();
    ends_.clear();
    first_copy_ = first_group_ = 0;
  }

 private:
  static constexpr size_t kForgotten = 1024;  ///< finished copies that are kept at most
  void Forget() {
    const Unwatched emulator;
    copies_.erase(copies_.begin(), copies_.begin() + static_cast<std::ptrdiff_t>(first_copy_));
    ends_.erase(ends_.begin(), ends_.begin() + static_cast<std::ptrdiff_t>(first_group_));
    for (size_t& end : ends_) end -= first_copy_;
    first_copy_ = first_group_ = 0;
  }
  std::vector<AsyncCopy> copies_;
  std::vector<size_t> ends_;  ///< of each group, in copies_
  size_t first_copy_ = 0, first_group_ = 0;
};

struct SharedRange {
  uint32_t offset, bytes;
};

/// What the scheduler looks at, up to the wait's context, is one line of the cache: a switch misses no other.
struct alignas(64) Thread {
  Fiber fiber;
  bool done = false;
  bool released_dependents = false;  ///< executed griddepcontrol.launch_dependents
  int id = 0, lane = 0, warp = 0;
  Wait wait;
  Index3 index;
  CopyQueue copies;
  std::vector<SharedRange> stored;  ///< since its last fence.proxy.async; see Block::NoteStored
  bool runnable() const { return !done && wait.over(); }
};

/// Barrier with generations. `sync` are ThreadSanitizer's objects, one per generation parity.
struct Barrier {
  uint64_t generation = 0;
  uint32_t arrived = 0;
  uint32_t expected = 0;  ///< 0: all living threads of the block
  uint64_t sync[2] = {};
};

inline constexpr int kWarpSize = 32;
inline constexpr int kNamedBarriers = 16;

/// Meeting point of a warp's lanes: each says where on its stack it keeps what it gives and takes, the last one
/// combines.
struct Warp {
  uint32_t arrived_lanes = 0;
  uint32_t mask = 0;
  const char* operation = nullptr;
  Where where;
  Barrier meeting;
  void* exchanged[kWarpSize];
};

/// An mbarrier: phase completes when no arrival and no byte is pending.
struct MBarrier {
  uint32_t count = 0;
  uint32_t pending = 0;
  uint64_t phase = 0;
  int64_t pending_bytes = 0;
  bool fenced = false;    ///< its initialization is known to TMA
  uint64_t sync[2] = {};  ///< ThreadSanitizer's, one per phase parity
};

/// One wgmma in flight: where each of the 128 threads keeps its accumulators, and the operands: by descriptors, or `a`
/// by each thread's registers and `b` with K as its rows.
struct WarpGroupMma {
  float* accumulators[128];
  uint64_t a_descriptor = 0, b_descriptor = 0;
  int n = 0;
  bool accumulate = false;
  bool a_in_registers = false;
  bool e4m3 = false;                 ///< else bf16
  const uint32_t* a_registers[128];  ///< four each
};
struct WarpGroup {
  Barrier meeting;
  bool fenced = false;  ///< wgmma.fence since the start and since the last wait
  WarpGroupMma next;
  std::vector<WarpGroupMma> open;
  std::deque<std::vector<WarpGroupMma>> groups;
  // ThreadSanitizer's: the agent that reads operands, in order.
  static constexpr uint64_t kSyncs = 8;  ///< more than groups in flight
  void* agent = nullptr;
  uint64_t issued = 0, committed = 0, completed = 0;
  uint64_t sync[kSyncs] = {};  ///< of committed group i % kSyncs
  ~WarpGroup() {
    if (agent != nullptr) EndAgent(agent);
  }
};

/// A bulk copy in flight: `complete` moves the bytes and tells the mbarrier.
struct BulkCopy {
  void (*complete)(class Block& block, const BulkCopy& copy) = nullptr;
  alignas(8) unsigned char tensor[64] = {};  ///< the map, copied: the issuing thread may end before its copy
  int x = 0, y = 0;
  uint32_t dst = 0, barrier = 0;  ///< offsets in shared memory
  void* agent = nullptr;          ///< ThreadSanitizer's
};

/// A store to memory that other devices see, which they do not see yet.
struct PeerStore {
  void* to = nullptr;
  unsigned char bytes[16] = {};
  uint8_t size = 0;
  int thread = 0;         ///< that stored it
  uint64_t barriers = 0;  ///< __syncthreads of the block before it
};

/// The launch a block belongs to.
struct GridShape {
  Index3 grid, block;
  size_t shared_bytes = 0;
  void (*kernel)(void* arguments) = nullptr;
  void* arguments = nullptr;
};

class Block {
 public:
  Block(const GridShape& shape, Index3 index, const Policy& policy, size_t first_stack);
  ~Block();

  enum class Stop { kDone, kFailed, kDependentsReleased, kAtGridDependency };
  static constexpr const char* kGridDependency = "griddepcontrol.wait";
  static constexpr const char* kSystemFlag = "ld.acquire.sys";  ///< another device ends the wait
  /// Runs until done or failed; with `stop_early` also until every thread released its dependents or (for a kernel
  /// started early) nothing moves on before griddepcontrol.wait opens.
  Stop Run(bool stop_early);
  /// Opens griddepcontrol.wait: what the primary wrote is visible after it.
  void DependencyMet() {
    NoteRelease(&dependency_met);
    dependency_met = true;
  }

  // ---- used by px on the current thread
  /// Meets the other lanes of `mask`; `combine` runs once over what all of them exchange, and changes it in place. Only
  /// __syncwarp orders the lanes' memory: the others do in fact, but promise nothing.
  void Meet(uint32_t mask, void* exchanged, void (*combine)(Block&, Warp&), const char* operation, Where where,
            bool orders_memory = false);
  /// All 128 threads of a warpgroup meet; `last` runs once. Orders no memory.
  void MeetWarpGroup(void (*last)(Block&, WarpGroup&, void*), void* context, const char* operation, Where where);
  void BarrierSync(int id, uint32_t count, Where where);
  void BarrierArrive(int id, uint32_t count, Where where);
  /// Lets other threads of the warp run until the wait is over; what it stands for has been written to the current
  /// thread's `wait` when it is over at once, too.
  void WaitUntil(const Wait& wait);
  WarpGroup& CurrentWarpGroup();
  /// Offset of p in shared memory; fails when [p, p + bytes) is outside or misaligned.
  uint32_t SharedOffset(const void* p, size_t bytes, size_t alignment, const char* operation, Where where) {
    const auto offset = static_cast<size_t>(static_cast<const unsigned char*>(p) - shared);
    if (offset > shape.shared_bytes || bytes > shape.shared_bytes - offset || offset % alignment != 0)
      FailShared(p, bytes, alignment, operation, where);
    return static_cast<uint32_t>(offset);
  }
  /// Shared memory as TMA and wgmma see it: what they wrote, and what threads had written when they fenced it
  /// (fence.proxy.async).
  std::vector<unsigned char>& AsyncView() {
    if (async_view_.empty()) MakeAsyncView();
    return async_view_;
  }
  /// From now on a fence shows what its thread has stored by px, and nobody else's.
  void WatchStores() { watches_stores_ = true; }
  void NoteStored(const void* p, size_t bytes) {
    if (watches_stores_) AddStored(p, bytes);
  }
  /// The current thread's fence.proxy.async.
  void ShowStores();
  /// Other devices see what `by` had stored, and what others had before the last __syncthreads. Null: everything.
  void ShowPeerStores(const Thread* by);
  [[noreturn]] void Fail(const std::string& message, Where where);

  GridShape shape;
  Index3 index;
  Policy policy;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<std::unique_ptr<WarpGroup>> warp_groups;  ///< each made when it is first asked for
  Barrier barriers[kNamedBarriers];
  std::map<uint32_t, MBarrier> mbarriers;
  std::vector<BulkCopy> bulk_copies;
  std::vector<PeerStore> peer_stores;
  std::vector<int> warp_registers;          ///< of a thread of each warp, once setmaxnreg has moved some
  static constexpr size_t kGroupWarps = 4;  ///< of a warpgroup
  int free_registers = 0;                   ///< that warps have given, for a thread of one warp
  uint64_t begun = 0, ended = 0;  ///< ThreadSanitizer's: what came before the block's threads, and what they did
  unsigned char* shared = nullptr;
  int alive = 0;
  bool dependency_met = true;
  std::mt19937_64 rng;
  std::string error;
  const char* kernel = "";  ///< the signature of the function that called px::GridDependencyWait
  Counters counters;
  std::unique_ptr<AccessCounter> accesses;  ///< with Policy::count

 private:
  std::vector<unsigned char> async_view_;  ///< made when it is first asked for
  bool watches_stores_ = false;
  bool rounds_ = false;  ///< a warp's turn lasts until all of its threads wait
  /// The thread of `warp` whose turn it is after number `after` of the block: the next that can go on, and with
  /// rounds_ the first again after the last. Null: none.
  Thread* NextOf(size_t warp, int after) {
    const size_t first = warp * kWarpSize, last = std::min(first + kWarpSize, threads.size());
    for (size_t i = static_cast<size_t>(after) + 1; i < last; ++i)
      if (threads[i].runnable()) return &threads[i];
    if (!rounds_) return nullptr;
    for (size_t i = first; static_cast<int>(i) <= after; ++i)
      if (threads[i].runnable()) return &threads[i];
    return nullptr;
  }
  void MakeAsyncView();
  bool RunWarp(size_t warp);
  [[noreturn]] void FailShared(const void* p, size_t bytes, size_t alignment, const char* operation, Where where);
  bool RunOneBulkCopy();
  void ThreadEnded(Thread& t);
  void Release(Barrier& barrier);
  bool SomeWaitAt(const char* operation) const;
  bool SomeWaitForADevice() const;
  std::string DeadlockReport() const;
  std::string Place() const;
  void CheckEnd();
  std::string WhatIsLeft() const;
  void CheckCanary();
  void AddStored(const void* p, size_t bytes);
  static void Entry();
};

/// The block and thread whose kernel code is running on this OS thread. Two words in the part of thread-local memory
/// that is there at once, in a plugin too: every px function asks for them.
struct Running {
  Block* block = nullptr;
  Thread* thread = nullptr;
};
extern constinit thread_local Running running __attribute__((tls_model("initial-exec")));
inline Block& CurrentBlock() { return *running.block; }
inline Thread& CurrentThread() { return *running.thread; }
inline bool InsideKernel() { return running.thread != nullptr; }

/// Compiled into its callers: the wait is then written to the thread field by field, not copied.
inline void Block::WaitUntil(const Wait& wait) {
  const Unwatched emulator;
  Thread& t = CurrentThread();
  t.wait = wait;
  Thread* const next = NextOf(static_cast<size_t>(t.warp), t.id);
  if (next == nullptr) {
    SuspendFiber(t.fiber, false);
  } else if (next != &t) {
    running.thread = next;
    SwitchFiber(t.fiber, next->fiber);
  }
  t.wait.generation = nullptr;
  t.wait.ready = nullptr;
}

/// "attention.cuh:120".
std::string Line(const Where& where);

}  // namespace baton::simt
