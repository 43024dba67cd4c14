// One thread block under emulation: threads as fibers, warps, barriers, shared memory, asynchronous copies.
//
// Everything here belongs to one OS thread. Kernel code reaches it through px only; `CurrentBlock()` and
// `CurrentThread()` are set while a kernel runs. Any misuse of the machine ends the grid with a message (Fail), it does
// not end the process, so that tests can plant bugs and see them found.
#pragma once

#include <cstdint>
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

/// What a waiting thread waits for: ready(context, value) turns true.
struct Wait {
  bool (*ready)(const void* context, uint64_t value) = nullptr;
  const void* context = nullptr;
  uint64_t value = 0;
  const char* operation = "";
  std::string detail;  ///< "id 3, 64 of 128 threads arrived"
  Where where;
};

/// A cp.async: 16 (or 4, 8) bytes, zero-filled when the source is switched off.
struct AsyncCopy {
  void* dst;
  const void* src;
  int bytes;
  bool valid;
  bool performed = false;
};

struct Thread {
  Fiber fiber;
  Index3 index;
  int id = 0, lane = 0, warp = 0;
  bool done = false;
  bool released_dependents = false;  ///< executed griddepcontrol.launch_dependents
  Wait wait;
  std::vector<AsyncCopy> open_copies;
  std::deque<std::vector<AsyncCopy>> copy_groups;
};

/// Barrier with generations. `sync` are ThreadSanitizer's objects, one per generation parity.
struct Barrier {
  uint64_t generation = 0;
  uint32_t arrived = 0;
  uint32_t expected = 0;  ///< 0: all living threads of the block
  uint64_t sync[2] = {};
};

inline constexpr int kWarpSize = 32;
inline constexpr int kSlotBytes = 96;

/// Meeting point of a warp's lanes: each deposits into its slot, the last one combines, each reads its slot back.
struct Warp {
  struct alignas(16) Slot {
    unsigned char bytes[kSlotBytes];
  };
  Slot slots[kWarpSize];
  Barrier meeting;
  uint32_t arrived_lanes = 0;
  uint32_t mask = 0;
  const char* operation = nullptr;
  Where where;
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

/// One wgmma in flight: where each of the 128 threads keeps its accumulators, and the operands' descriptors.
struct WarpGroupMma {
  float* accumulators[128];
  uint64_t a_descriptor = 0, b_descriptor = 0;
  int n = 0;
  bool accumulate = false;
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
  /// Runs until done or failed; with `stop_early` also until every thread released its dependents or (for a kernel
  /// started early) nothing moves on before griddepcontrol.wait opens.
  Stop Run(bool stop_early);
  /// Opens griddepcontrol.wait: what the primary wrote is visible after it.
  void DependencyMet() {
    NoteRelease(&dependency_met);
    dependency_met = true;
  }

  // ---- used by px on the current thread
  /// Meets the other lanes of `mask`; `combine` runs once over all slots. Returns this lane's slot. Only __syncwarp
  /// orders the lanes' memory: the others do in fact, but promise nothing.
  void* Meet(uint32_t mask, const void* in, size_t bytes, void (*combine)(Block&, Warp&), const char* operation,
             Where where, bool orders_memory = false);
  /// All 128 threads of a warpgroup meet; `last` runs once. Orders no memory.
  void MeetWarpGroup(void (*last)(Block&, WarpGroup&, void*), void* context, const char* operation, Where where);
  void BarrierSync(int id, uint32_t count, Where where);
  void BarrierArrive(int id, uint32_t count, Where where);
  void WaitUntil(Wait wait);
  WarpGroup& CurrentWarpGroup();
  /// Offset of p in shared memory; fails when [p, p + bytes) is outside or misaligned.
  uint32_t SharedOffset(const void* p, size_t bytes, size_t alignment, const char* operation, Where where);
  /// Shared memory as TMA and wgmma see it: what they wrote, and what threads had written at the last
  /// fence.proxy.async of any of them.
  std::vector<unsigned char>& AsyncView();
  [[noreturn]] void Fail(const std::string& message, Where where);

  GridShape shape;
  Index3 index;
  Policy policy;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::map<int, WarpGroup> warp_groups;
  std::map<int, Barrier> barriers;
  std::map<uint32_t, MBarrier> mbarriers;
  std::vector<BulkCopy> bulk_copies;
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
  bool Runnable(const Thread& t) const;
  void Resume(Thread& t);
  bool RunWarp(size_t warp, bool until_all_wait);
  bool RunOneBulkCopy();
  void ThreadEnded(Thread& t);
  void Release(Barrier& barrier);
  bool SomeWaitAt(const char* operation) const;
  std::string DeadlockReport() const;
  std::string Place() const;
  void CheckCanary();
  static void Entry();
};

/// The block and thread whose kernel code is running on this OS thread.
Block& CurrentBlock();
Thread& CurrentThread();
bool InsideKernel();

/// "attention.cuh:120".
std::string Line(const Where& where);

}  // namespace baton::simt
