// Layouts of a given number of devices, ranked by the requests per second that their rooflines allow, and why the
// others are none. Pure but for the model's headers.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/roofline.h"

namespace baton::plan {

struct Proposal {
  int tensor_size = 1, stages = 1;        ///< of every worker
  int both = 0, prefill = 0, decode = 0;  ///< workers
  double requests_per_s = 0;              ///< of all of them
  double ttft_ms = 0, tpot_ms = 0;
  double prefill_busy = 0, decode_busy = 0;                    ///< 0…1, of a P:D layout
  std::string why_not{};                                       ///< empty: it meets the goals
  Range rate_range{0, 0}, ttft_range{0, 0}, tpot_range{0, 0};  ///< as sure as the machine's times are
  std::vector<double> corner_rates{};                          ///< requests/s at each of the machine's corners
  /// "3 prefill and 5 decode workers of tensor size 2".
  std::string Name() const;
};

/// The same layout with the rates and times of `roofline`: of other requests, or with another number of workers.
Proposal Rated(Proposal layout, const Roofline& roofline, const Load& load);

/// In how many of the corners the first layout is the fastest of those that meet the goals, and which one is in the
/// others: a line. Empty: there is nothing to choose, or nothing is unsure.
std::string OrderText(const std::vector<Proposal>& proposals);

/// The layouts in which workers share `devices` devices of `device_bytes` each: those that meet the goals by requests
/// per second, then the others, each with its reason. Fails as PlanRoofline where no layout could do better.
absl::StatusOr<std::vector<Proposal>> Propose(const worker::WorkerConfig& config, int devices, int64_t device_bytes,
                                              const Machine& machine, const Load& load);

}  // namespace baton::plan
