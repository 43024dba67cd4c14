// A prompt as the body of a request to an OpenAI server.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "load/bench_options.h"
#include "load/prompts.h"

namespace baton::load {

/// Makes bodies. Immutable after Make.
class RequestBody {
 public:
  /// InvalidArgument: --extra-body is no JSON object or has what it may not, or --temperature (…) is no number.
  static absl::StatusOr<RequestBody> Make(const BenchOptions& options, const std::string& model);

  /// Streamed, with a usage; seed is --seed and the request's number. What --extra-body says stands in its place.
  std::string Of(const Prompt& prompt, size_t index) const;

 private:
  bool chat_ = false, has_seed_ = false, has_length_ = false;  ///< has: --extra-body says it
  uint64_t seed_ = 0;
  std::string tail_;  ///< what all requests have, without the closing brace
};

}  // namespace baton::load
