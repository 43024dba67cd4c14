// The cheapest way to serve a prompt by predicted cost, without a cost for every pair: O(prefill + decode workers + the
// pairs that are looked at). Pure.
#pragma once

#include <cstddef>
#include <optional>

#include "router/policy/route_options.h"

namespace baton::router {

/// So many prefill workers, and so many decode workers, are looked at closely: those that cost least by themselves,
/// equals in turn.
inline constexpr size_t kCloseLook = 32;

/// Of OptionsOf(question), which has handoff terms with `met`, one whose PredictedCost is the least; of equal ones
/// whose `turn` it is. Where more than kCloseLook workers of a side cost nearly the same, the chosen pair may cost more
/// than the least: no more than its own transfer takes.
std::optional<RouteOption> CheapestOption(const RouteQuestion& question, double lambda, size_t turn);

}  // namespace baton::router
