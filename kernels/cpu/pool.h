// The compute threads of CpuOps. They wait for work with a short bounded spin and then sleep, and a region is over when
// its items are done, not when every thread has shown up: a thread that a neighbour keeps off its core delays nobody
// unless it holds an item.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace baton::kernels::cpu {

/// Owned by one CpuOps; Run is called by one thread at a time and takes part in the work.
class Pool {
 public:
  /// `threads` ≥ 1 counts the caller.
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }
  /// Calls work(item) once for every item in [0, items), items < 2^31, in any order on any
  /// thread; returns when all are done.
  void Run(int64_t items, absl::FunctionRef<void(int64_t)> work);

 private:
  void Serve();
  bool TakeAndDoOne();

  // (items << 32) | next. Taking an item is one fetch_add; it is a valid claim while next < items. A claim of a newer
  // region by a late thread is valid too: `work_` cannot change before that item is done.
  std::atomic<uint64_t> claims_{0};
  const absl::FunctionRef<void(int64_t)>* work_ = nullptr;
  std::atomic<int> done_{0};
  std::atomic<int> region_{0};  ///< changes when work arrives; what sleeping threads wait on
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace baton::kernels::cpu
