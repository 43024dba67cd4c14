// A layout as what starts it: values of the Helm chart, or a compose file.
#pragma once

#include <string>

#include "plan/memory_plan.h"
#include "plan/proposals.h"

namespace baton::plan {

/// Values for deploy/helm/baton. The volume that the model is in is left to say.
std::string HelmValues(const worker::WorkerConfig& config, const MemoryPlan& memory, const Proposal& layout);
/// Services on one machine, as deploy/compose/compose.yaml has them.
std::string ComposeFile(const worker::WorkerConfig& config, const MemoryPlan& memory, const Proposal& layout);

}  // namespace baton::plan
