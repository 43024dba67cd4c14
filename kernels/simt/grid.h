// Runs grids: the host half of a kernel launch. Blocks run one after another on the calling OS thread, in a seeded
// order; a kernel launched with programmatic dependent launch may start before its predecessor ends.
#pragma once

#include "kernels/simt/block.h"
#include "kernels/simt/policy.h"

namespace baton::simt {

/// Limits of an H200, checked at launch.
inline constexpr size_t kMaxSharedBytes = 227 << 10;
inline constexpr unsigned kMaxThreads = 1024;

/// Runs one grid to its end.
Outcome RunGrid(const GridShape& shape, const Policy& policy);

/// Runs `primary`, then `secondary`, which was launched with PDL. Under eager policies the secondary's first blocks run
/// up to griddepcontrol.wait while the primary's last block is only as far as griddepcontrol.launch_dependents.
Outcome RunGridPair(const GridShape& primary, const GridShape& secondary, const Policy& policy);

/// Adds `more` to `sum`.
void AddCounters(Counters& sum, const Counters& more);
void AddCounters(std::map<std::string, Counters>& sum, const std::map<std::string, Counters>& more);

}  // namespace baton::simt
