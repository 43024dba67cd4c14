// The loads that one command measures: each of --request-rate's rates with each of --max-concurrency's limits.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "load/bench_options.h"

namespace baton::load {

struct LoadPoint {
  double request_rate = std::numeric_limits<double>::infinity();  ///< per second; infinite: all at once
  int64_t max_concurrency = 0;                                    ///< requests at a time; 0: no limit
  bool own_times = false;                                         ///< of a trace, which says when its requests come

  bool operator==(const LoadPoint&) const = default;
};

/// In the order of the lists, rates first. InvalidArgument names the flag and its text, or both flags where two of a
/// ramp, a rate and a trace's own times say when requests come.
absl::StatusOr<std::vector<LoadPoint>> PointsOf(const BenchOptions& options);

/// "4/s, 16 at a time": as people read it.
std::string PointName(const LoadPoint& point);

}  // namespace baton::load
