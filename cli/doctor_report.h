// The lines of `baton doctor`.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/ops.h"

namespace baton::cli {

enum class Verdict : uint8_t { kOk, kWarning, kError };

class DoctorReport {
 public:
  /// Prints a line: what was looked at, and what was found or what to do about it.
  void Line(Verdict verdict, const std::string& what, const std::string& text);
  /// Some line was an error.
  bool failed() const { return failed_; }

 private:
  bool failed_ = false;
};

/// Whether a worker that computes with `traits` and a router could serve this HF directory or .gguf file; reads headers
/// and tokenizer, no weights.
void CheckModel(DoctorReport& report, const std::string& model, const kernels::OpsTraits& traits);

}  // namespace baton::cli
