// A layout under other requests than those it was planned for, and with a worker less: by rooflines, without queues.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/proposals.h"

namespace baton::plan {

struct Variation {
  std::string what;  ///< "prompts twice as long"
  Proposal outcome;  ///< the layout with its rates; why_not: what it misses then
};

/// The layout as it is, then lengths halved and doubled, hit rates of 0, 50 and 90 %, and each kind of worker with one
/// less. `memory`: of one of its workers. A variation whose sequences do not fit says so.
absl::StatusOr<std::vector<Variation>> Vary(const worker::WorkerConfig& config, const MemoryPlan& memory,
                                            const Machine& machine, const Load& load, const Proposal& layout);

/// A row for each. `rate`: requests per second that are wanted, 0: not said; then the share of them that is served
/// stands behind, also for half and one and a half times as many.
std::string VariationsText(const std::vector<Variation>& variations, double rate);

}  // namespace baton::plan
