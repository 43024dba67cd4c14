// Spans as OTLP's JSON (opentelemetry-proto, ExportTraceServiceRequest in its JSON mapping: ids in hex, 64-bit numbers
// as strings), what a collector takes at /v1/traces.
#pragma once

#include <span>
#include <string>

#include "router/telemetry/request_trace.h"

namespace baton::router {

struct TraceResource {
  std::string service = "baton-router", version, instance;
};

std::string EncodeSpans(const TraceResource& resource, std::span<const Span> spans);

}  // namespace baton::router
