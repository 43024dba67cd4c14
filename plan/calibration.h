// What a measured load says about planned times: how many times the roofline real prompts and steps took.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "plan/memory_plan.h"
#include "plan/step_times.h"

namespace baton::plan {

struct Calibration {
  double prefill_factor = 1, decode_factor = 1;  ///< medians of measured over planned, of every other request
  /// Mean of |planned − measured| / measured over the requests in between, which the factors have not seen: with the
  /// roofline alone, and with the factors.
  double ttft_error_before = 0, ttft_error_after = 0, tpot_error_before = 0, tpot_error_after = 0;
  /// Of these requests, measured over planned with the factors: eight of ten lie within.
  Range ttft_range, tpot_range;
  int64_t requests = 0;
};

/// `bench`: what `baton bench --save-detailed` wrote, of a cluster whose `workers` workers are as planned. Prompts are
/// compared without their queue where the server told its stages. InvalidArgument: not such a result, or too few
/// requests in it.
absl::StatusOr<Calibration> Calibrate(const std::string& bench, const worker::WorkerConfig& config,
                                      const MemoryPlan& plan, const Machine& machine, int workers);

/// Two lines: the factors, and the errors before and after.
std::string CalibrationText(const Calibration& calibration);

}  // namespace baton::plan
