// The requests of a simulated cluster's clients.
#pragma once

#include "router/generation.h"
#include "sim/scenario.h"
#include "sim/timeline.h"

namespace baton::sim {

/// A request with parameters by chance. `before`: the one asked before it, whose prompt it may begin with; or null.
router::Generation MakeGeneration(int number, const ClusterScenario& scenario, Timeline& time,
                                  const router::Generation* before);

}  // namespace baton::sim
