// A plan for people, for programs, and as a worker's flags.
#pragma once

#include <string>

#include "plan/memory_plan.h"

namespace baton::plan {

/// Tables; each line ends with a line feed.
std::string PlanText(const worker::WorkerConfig& config, const MemoryPlan& plan);
/// One JSON object, bytes as integers. docs/plan.md lists its keys.
std::string PlanJson(const worker::WorkerConfig& config, const MemoryPlan& plan);
/// One line for `baton worker` or `baton serve`: the model, the layout, and the lengths and KV memory that were chosen.
std::string PlanFlags(const worker::WorkerConfig& config, const MemoryPlan& plan);

}  // namespace baton::plan
