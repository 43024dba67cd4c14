// RequestTrace: a finished request as OpenTelemetry sees it: one span of kind server with a span for each stage below
// it, made of spans of time that the router and the workers measured (request/stage_clock.h). Workers send no spans of
// their own: what they measured is in every answer. No text of a prompt or an answer is in it. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/clock.h"
#include "router/request_types.h"

namespace baton::router {

struct RequestTrace {
  std::string request_id, model, finish_reason;
  std::string error;                          ///< of a request that failed
  std::string traceparent;                    ///< the caller's header as it came
  std::string prefill_worker, decode_worker;  ///< names; empty: none took part
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0, thought_tokens = 0;
  int64_t max_tokens = 0, n = 1, attempts = 0;
  double temperature = 0, top_p = 1;
  bool mixed_numerics = false;
  StageTimings stages;
  int64_t ended_unix_ns = 0;
  // From the request's arrival on.
  Duration took{};
  std::optional<Duration> first_order, first_token, attached;
};

struct Span {
  using Value = std::variant<std::string, int64_t, double, bool>;
  std::string name, trace_id, span_id, parent_id;  ///< hex; parent_id may be empty
  int64_t start_unix_ns = 0, end_unix_ns = 0;
  bool server = false;  ///< kind; else internal
  std::string error;    ///< empty: status unset
  std::vector<std::pair<std::string, Value>> attributes;
};

/// Whether the trace is kept: as the caller decided, else `ratio` of the traces by their id, on every router alike.
/// Where it is, its spans, the request's own first. `random`: words for ids.
std::vector<Span> SpansOf(const RequestTrace& trace, double ratio, uint64_t (*random)());

}  // namespace baton::router
