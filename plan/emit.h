// A plan as what starts it: a worker's flags, values of the Helm chart, or a compose file. Names are quoted for the
// shell or for YAML; InvalidArgument: a name is not UTF-8, which YAML is.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "plan/memory_plan.h"
#include "plan/proposals.h"

namespace baton::plan {

/// One line for `baton worker` or `baton serve`: the model, the layout, and the lengths and KV memory that were chosen.
std::string PlanFlags(const worker::WorkerConfig& config, const MemoryPlan& memory);
/// Values for deploy/helm/baton. The volume that the model is in is left to say.
absl::StatusOr<std::string> HelmValues(const worker::WorkerConfig& config, const MemoryPlan& memory,
                                       const Proposal& layout);
/// Services on one machine, as deploy/compose/compose.yaml has them.
absl::StatusOr<std::string> ComposeFile(const worker::WorkerConfig& config, const MemoryPlan& memory,
                                        const Proposal& layout);

}  // namespace baton::plan
