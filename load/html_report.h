// Everything that was measured as one page that needs no network: table, front, the rate over time with the faults in
// it, how times are distributed, and where the time of the requests at p50 and p99 went.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "load/bench_options.h"
#include "load/measured.h"

namespace baton::load {

/// Not empty.
std::string HtmlPage(const std::vector<Measured>& measured, const BenchOptions& options);
/// Unavailable: the file cannot be written.
absl::Status WriteHtml(const std::vector<Measured>& measured, const BenchOptions& options, const std::string& path);

}  // namespace baton::load
