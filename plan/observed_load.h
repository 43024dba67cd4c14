// The load that a running server has seen, from its metrics: Baton's and vLLM's have the same names.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton::plan {

struct ObservedLoad {
  int64_t requests = 0;
  double isl = 0, osl = 0;                 ///< tokens, means
  double hit_share = 0;                    ///< of prompt tokens, found in a cache
  std::optional<double> ttft_ms, tpot_ms;  ///< means
};

/// `text`: in Prometheus' form. FailedPrecondition: another server's metrics, or no request was answered yet.
absl::StatusOr<ObservedLoad> ReadObservedLoad(std::string_view text);

/// "812 requests: prompts of 512 tokens, …"
std::string ObservedText(const ObservedLoad& load);

}  // namespace baton::plan
