// A summary as text for people and as JSON for programs, with the labels and keys of `vllm bench serve` and more.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "load/bench_options.h"
#include "load/measured.h"

namespace baton::load {

struct Report {
  const BenchOptions& options;
  std::vector<double> percentiles;
  const Measured& measured;
};

std::string ReportText(const Report& report);
/// One object.
std::string ReportJson(const Report& report);

/// The name that the result's file gets if nobody named it.
std::string ResultFileName(const Report& report);
/// `append`: the result is another line of the file. Errors: as WriteWhole's.
absl::Status WriteResult(const Report& report, const std::string& path, bool append);

}  // namespace baton::load
