// What flags of a load must be beside the ranges of single fields.
#pragma once

#include "absl/status/status.h"
#include "load/bench_options.h"

namespace baton::load {

/// InvalidArgument with flag and value: a metric that is not measured, --metadata without a key, a prompt or an answer
/// that is longer than a line of a trace may ask for.
absl::Status CheckBench(const BenchOptions& options);

}  // namespace baton::load
