// The requests of a simulated cluster's clients.
#pragma once

#include "router/request_types.h"
#include "sim/scenario.h"
#include "sim/timeline.h"

namespace baton::sim {

/// From this seed on half of the answers that follow grammars may come to where no token is allowed.
inline constexpr uint64_t kSeedsOfDeadEnds = 3'000'000;

/// A request with parameters by chance. `before`: the one asked before it, whose prompt it may begin with; or null.
router::TokenizedRequest MakeTokenizedRequest(int number, const ClusterScenario& scenario, Timeline& time,
                                              const router::TokenizedRequest* before);

}  // namespace baton::sim
