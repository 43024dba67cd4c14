// Runs grids: the host half of a kernel launch. Blocks run one after another on the calling OS thread, in a seeded
// order; a kernel launched with programmatic dependent launch may start before its predecessor ends.
#pragma once

#include <span>

#include "kernels/simt/block.h"
#include "kernels/simt/policy.h"

namespace baton::simt {

/// Limits of an H200, checked at launch.
inline constexpr size_t kMaxSharedBytes = 227 << 10;
inline constexpr unsigned kMaxThreads = 1024;

/// Runs one grid to its end.
Outcome RunGrid(const GridShape& shape, const Policy& policy);

/// Runs grids one after another, all but the first launched with PDL. Under eager policies the first blocks of the next
/// grid run up to griddepcontrol.wait while a grid's last block is only as far as griddepcontrol.launch_dependents; so
/// do those of the grid after it, where the whole next grid has begun and released its dependents before it waits.
Outcome RunGridChain(std::span<const GridShape> grids, const Policy& policy);

/// Adds `more` to `sum`.
void AddCounters(Counters& sum, const Counters& more);
void AddCounters(std::map<std::string, Counters>& sum, const std::map<std::string, Counters>& more);

}  // namespace baton::simt
