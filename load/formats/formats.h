// Results as other tools write theirs, for what reads those: guidellm's report, a line of sglang's bench_serving, the
// report files of inference-perf. Each cc file maps our figures to the names of one tool; where a tool means another
// thing by a name, its meaning is computed.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "load/bench_options.h"
#include "load/measured.h"

namespace baton::load {

/// One FORMAT=PATH of --save-as.
struct SaveWish {
  std::string format, path;
};
/// InvalidArgument names the text that is not one.
absl::StatusOr<std::vector<SaveWish>> ParseSaveAs(const std::vector<std::string>& texts);

/// With those above it. FailedPrecondition says why not.
absl::Status MakeFolder(const std::string& path);
/// Writes every run. Errors: as WriteWhole's.
absl::Status SaveAs(const SaveWish& wish, const std::vector<Measured>& all, const BenchOptions& options);

/// One report, a benchmark of it per run (`guidellm export` and its library read it).
std::string GuidellmReport(const std::vector<Measured>& all, const BenchOptions& options);
/// A line per run.
std::string SglangLines(const std::vector<Measured>& all, const BenchOptions& options);
/// File name → text: a stage per run, and all requests.
std::map<std::string, std::string> InferencePerfFiles(const std::vector<Measured>& all, const BenchOptions& options);

}  // namespace baton::load
