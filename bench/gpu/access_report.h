// What the emulator counted of every kernel's memory accesses, beside the limits that are committed: the gate of
// bench_gpu_dry. Emulator only.
#pragma once

#include <map>
#include <string>

#include "kernels/runtime/runtime.h"

namespace baton::bench {

class AccessReport {
 public:
  /// Adds what the stream's grids did under a policy that counts.
  void Add(const gpu::Stream& stream) { simt::AddCounters(kernels_, stream.counters_by_kernel()); }
  /// Prints one line per kernel, with what exceeds its limit in `limits_path` (tab-separated, see its head). Returns
  /// how many kernels exceed one, are not in the file, or are in it and were not `complete`ly run.
  int Print(const std::string& limits_path, bool complete) const;

 private:
  std::map<std::string, simt::Counters> kernels_;  ///< by name without template arguments
};

}  // namespace baton::bench
