// What tests and the environment decide about the emulated NCCL (emulated_nccl.h), as its calls read it. Thread: any.
#pragma once

#include <atomic>
#include <cstdint>

namespace baton::gpu {

/// Where a rank goes wrong: in its call of that number.
struct NcclFault {
  std::atomic<int> rank = -1;
  std::atomic<int64_t> call = 0;
  bool Hits(int who, int64_t number) const { return rank == who && call == number; }
  void Set(int who, int64_t number) {
    call = number;
    rank = who;
  }
};

struct NcclFaults {
  NcclFault hang, failure;
  std::atomic<int> hanging = 0, aborting = 0;  ///< ranks that stand still, aborts that wait for graphs
  /// The rank whose next call is refused, and whether it is one in a capture; -1: none.
  std::atomic<int> refused_rank = -1;
  std::atomic<bool> refused_in_capture = false;
  std::atomic<const char*> last_error = "";
  std::atomic<uint64_t> seed = 1;
  /// What the environment says; once.
  void Read();
};
extern NcclFaults nccl_faults;

}  // namespace baton::gpu
