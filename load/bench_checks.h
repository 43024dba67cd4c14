// What flags of a load must be beside the ranges of single fields.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "load/bench_options.h"

namespace baton::load {

/// --random-range-ratio: how far lengths are drawn around the one that was asked for.
struct RangeRatio {
  double input = 0, output = 0;  ///< from 0 to 0.999
};
/// "0.5", or a JSON object with "input" and "output". InvalidArgument names the text.
absl::StatusOr<RangeRatio> ParseRangeRatio(const std::string& text);

/// InvalidArgument with flag and value: a metric that is not measured, --metadata without a key, a prompt or an answer
/// that is longer than a line of a trace may ask for.
absl::Status CheckBench(const BenchOptions& options);

}  // namespace baton::load
