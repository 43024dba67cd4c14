// The one line that a request leaves in the router's log, however it ended.
#pragma once

#include <cstdint>
#include <string>

#include "router/request_types.h"

namespace baton::router {

struct RequestLine {
  std::string id;
  std::string reason;  ///< stop, length, abort, error
  std::string cause;   ///< of an error; empty: none
  RequestUsage usage;
  double seconds = 0, first_token_s = 0;
  uint64_t seed = 0;
  std::string worker, prefill_worker;  ///< names; empty: none took part
  int64_t attempts = 0;
  StageTimings stages;
};

/// Errors are warnings, the rest info. With --log-format json every value is a field of its own.
void LogRequest(const RequestLine& line);

}  // namespace baton::router
