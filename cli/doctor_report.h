// The lines of `baton doctor`.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "cli/exit_code.h"
#include "kernels/ops.h"

namespace baton::cli {

enum class Verdict : uint8_t { kOk, kWarning, kError };

class DoctorReport {
 public:
  /// Prints a line: what was looked at, and what was found or what to do about it.
  void Line(Verdict verdict, const std::string& what, const std::string& text);
  /// A line with an error, whose class is the status's.
  void Error(const std::string& what, const absl::Status& status);
  /// Of the first error; kExitOk: there was none.
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_ = kExitOk;
};

/// Whether a worker that computes with `traits` and a router could serve this HF directory or .gguf file; reads headers
/// and tokenizer, no weights.
void CheckModel(DoctorReport& report, const std::string& model, const kernels::OpsTraits& traits);

}  // namespace baton::cli
