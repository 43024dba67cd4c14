// `baton plan --total-gpus`: ranked layouts, simulated, varied, and as files that start them.
#pragma once

#include "absl/status/status.h"
#include "cli/tools/plan_options.h"
#include "plan/calibration.h"

namespace baton::cli {

struct PlanCommand {
  worker::WorkerConfig config;
  PlannedMachine machine;
  PlanOptions options;
  ModelShape shape;
  std::optional<plan::Calibration> calibration{};  ///< once it was read

  /// What computes, as slow as it was measured to be.
  plan::Machine Machine() const;
  /// How sure the numbers are: one line.
  std::string Trust() const;
};

/// Prints them.
absl::Status PlanLayouts(const PlanCommand& command);
/// The model's folder or name as `command` was given it, in what is printed for people.
worker::WorkerConfig Named(const PlanCommand& command);

}  // namespace baton::cli
