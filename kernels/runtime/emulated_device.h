// What a test decides about the emulated device. Thread: any; one device per process.
#pragma once

#include <cstddef>
#include <cstdint>

namespace baton::gpu {

/// Memory of the device, 8 GiB at first. What lives keeps its own.
void SetEmulatedBytes(size_t bytes);
/// What each graph that is recorded from now on takes of that memory; nothing at first.
void SetEmulatedGraphBytes(size_t bytes);
/// Restarts the count of allocations; the n-th from now, n ≥ 1, fails. 0: none does.
void FailAllocation(int64_t n);
/// Allocations since then, failed ones included.
int64_t AllocationCount();

}  // namespace baton::gpu
