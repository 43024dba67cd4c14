// TraceParent: the W3C header `traceparent` (https://www.w3.org/TR/trace-context/), by which a caller says of which
// trace a request is a part.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace baton::router {

struct TraceParent {
  std::string trace_id;   ///< 32 lower-case hex digits, not all 0
  std::string parent_id;  ///< 16, not all 0
  bool sampled = false;   ///< the caller keeps the trace
};

/// Nothing where the header is not what the standard says: the request then begins a trace of its own.
std::optional<TraceParent> ParseTraceParent(std::string_view header);

}  // namespace baton::router
