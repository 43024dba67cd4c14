// How much memory this process may still take.
#pragma once

#include <cstdint>

namespace baton::engine {

/// The smaller of what the kernel calls available and what the memory cgroup leaves (page cache counts as free);
/// INT64_MAX when neither can be read.
int64_t AvailableHostBytes();

}  // namespace baton::engine
