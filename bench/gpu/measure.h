// How long a case takes with a cold L2: flushed by reading, so that no dirty line is written back on its time.
#pragma once

#include <algorithm>
#include <chrono>

#include "bench/gpu/kernel_case.h"

namespace baton::bench {

struct Timing {
  double median_us = 0, fastest_us = 0;
};

/// Reads all of `bytes` at `from`; a kernel of its own, so that the bytes come through the L2 and none is written.
void ReadAll(gpu::Stream& stream, const void* from, size_t bytes, uint32_t* sink);

#if defined(__CUDACC__)
constexpr bool kEmulated = false;
#else
constexpr bool kEmulated = true;
#endif

/// On a device the median of 31 launches between events; on the emulator one launch by the clock, which means nothing.
Timing Measure(const KernelCase& c, gpu::Stream& stream);

}  // namespace baton::bench
