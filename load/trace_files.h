// Traces: requests that were recorded elsewhere, with their times and lengths and without their texts. A line each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "load/bench_options.h"
#include "load/dataset_line.h"
#include "load/prompts.h"

namespace baton::load {

/// Reads the lines of one trace in their order; times count from its first. `number`: of the prompt, from 0.
class TraceReader {
 public:
  explicit TraceReader(const BenchOptions& options) : options_(options) {}

  /// Mooncake's form {"timestamp", "input_length", "output_length", "hash_ids"} in ms, or the same as {"ts", "il",
  /// "ol", "bh"}; of timed_trace under the names and in the units that its flags say.
  absl::StatusOr<Prompt> Json(const std::string& text, const DatasetLine& line, uint64_t number);
  /// Azure's: 2023-11-16 18:15:46.6805900,374,44, or that of 2024: 2024-05-10 00:00:00.009930+00:00,2162,5
  absl::StatusOr<Prompt> Azure(const std::string& text, const DatasetLine& line, uint64_t number);

 private:
  absl::Status SetTime(double ms, const DatasetLine& line, Prompt& prompt);

  const BenchOptions& options_;
  std::optional<double> first_ms_{};
  double last_ms_ = 0;
};

}  // namespace baton::load
