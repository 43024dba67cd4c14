// A summary as text for people and as JSON for programs, with the labels and keys of `vllm bench serve` and more.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "load/bench_options.h"
#include "load/run.h"
#include "load/summary.h"

namespace baton::load {

struct Report {
  const BenchOptions& options;
  std::string model;
  std::string date;  ///< "20261123-141500"
  std::vector<double> percentiles;
  const RunResult& run;
  const Summary& summary;
  std::optional<Verified> verified{};
};

std::string ReportText(const Report& report);
/// One object.
std::string ReportJson(const Report& report);

/// The name that the result's file gets if nobody named it.
std::string ResultFileName(const Report& report);
/// Writes or appends the object. Unavailable: the file cannot be written.
absl::Status WriteResult(const Report& report, const std::string& path);

}  // namespace baton::load
