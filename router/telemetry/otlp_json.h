// Spans as OTLP's JSON (opentelemetry-proto, ExportTraceServiceRequest in its JSON mapping: ids in hex, 64-bit numbers
// as strings), what a collector takes at /v1/traces.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "router/telemetry/request_trace.h"

namespace baton::router {

struct TraceResource {
  std::string service = "baton-router", version, instance;
};

/// What a collector says of the spans that it has taken the others with (ExportTracePartialSuccess).
struct NotTaken {
  int64_t spans = 0;
  std::string why{};  ///< may be said where none is rejected
};
/// Of an answer with 200, whatever it holds.
NotTaken ReadNotTaken(std::string_view answer);

std::string EncodeSpans(const TraceResource& resource, std::span<const Span> spans);

}  // namespace baton::router
