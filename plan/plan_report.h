// A plan for people and for programs.
#pragma once

#include <optional>
#include <string>

#include "plan/memory_plan.h"
#include "plan/proposals.h"
#include "plan/roofline.h"

namespace baton::plan {

/// Times, and what they were worked out from.
struct RooflinePlan {
  Machine machine;
  Load load;
  std::vector<Roofline> corners;  ///< PlanCorners
  const Roofline& times() const { return corners[0]; }
};

/// Tables; each line ends with a line feed.
std::string PlanText(const worker::WorkerConfig& config, const MemoryPlan& plan,
                     const std::optional<RooflinePlan>& roofline);
/// One JSON object, bytes as integers. docs/plan.md lists its keys.
std::string PlanJson(const worker::WorkerConfig& config, const MemoryPlan& plan,
                     const std::optional<RooflinePlan>& roofline);
/// Ranked layouts, then a WHY NOT line for each that is none; and the same as a JSON array.
std::string ProposalsText(const std::vector<Proposal>& proposals);
std::string ProposalsJson(const std::vector<Proposal>& proposals);
}  // namespace baton::plan
