#include "router/telemetry/otlp_json.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "common/foreign_text.h"
#include "common/json.h"
#include "common/shallow_json.h"
#include "common/str_cat.h"
#include "router/json_writer.h"

namespace baton::router {
namespace {

constexpr int64_t kInternal = 1, kServer = 2;  // Span.SpanKind
constexpr int64_t kError = 2;                  // Status.StatusCode

struct ValueWriter {
  JsonWriter& w;
  void operator()(const std::string& value) { w.Field("stringValue", value); }
  void operator()(int64_t value) { w.Field("intValue", StrCat(value)); }
  void operator()(double value) { w.Field("doubleValue", value); }
  void operator()(bool value) { w.Field("boolValue", value); }
};

void WriteAttribute(JsonWriter& w, const std::string& key, const Span::Value& value) {
  w.BeginObject().Field("key", key).Key("value").BeginObject();
  std::visit(ValueWriter{w}, value);
  w.EndObject().EndObject();
}

void WriteSpan(JsonWriter& w, const Span& span) {
  w.BeginObject().Field("traceId", span.trace_id).Field("spanId", span.span_id);
  if (!span.parent_id.empty()) w.Field("parentSpanId", span.parent_id);
  w.Field("name", span.name).Field("kind", span.server ? kServer : kInternal);
  w.Field("startTimeUnixNano", StrCat(span.start_unix_ns)).Field("endTimeUnixNano", StrCat(span.end_unix_ns));
  w.Key("attributes").BeginArray();
  for (const auto& [key, value] : span.attributes) WriteAttribute(w, key, value);
  w.EndArray();
  w.Key("status").BeginObject();
  if (!span.error.empty()) w.Field("code", kError).Field("message", span.error);
  w.EndObject().EndObject();
}

}  // namespace

std::string EncodeSpans(const TraceResource& resource, std::span<const Span> spans) {
  std::string out;
  JsonWriter w(out);
  w.BeginObject().Key("resourceSpans").BeginArray().BeginObject();
  w.Key("resource").BeginObject().Key("attributes").BeginArray();
  WriteAttribute(w, "service.name", resource.service);
  WriteAttribute(w, "service.version", resource.version);
  WriteAttribute(w, "service.instance.id", resource.instance);
  w.EndArray().EndObject();
  w.Key("scopeSpans").BeginArray().BeginObject();
  w.Key("scope").BeginObject().Field("name", "baton").Field("version", resource.version).EndObject();
  w.Key("spans").BeginArray();
  for (const Span& span : spans) WriteSpan(w, span);
  w.EndArray().EndObject().EndArray();
  w.EndObject().EndArray().EndObject();
  return out;
}

NotTaken ReadNotTaken(std::string_view answer) {
  NotTaken out;
  const nlohmann::json json = ShallowJson(answer);
  const auto part = json.is_object() ? json.find("partialSuccess") : json.end();
  if (part == json.end() || !part->is_object()) return out;
  if (const auto count = part->find("rejectedSpans"); count != part->end()) {
    if (count->is_number_integer()) out.spans = count->get<int64_t>();
    if (count->is_string() && !absl::SimpleAtoi(count->get<std::string>(), &out.spans)) out.spans = 0;
  }
  if (const auto why = part->find("errorMessage"); why != part->end() && why->is_string())
    out.why = Printable(why->get<std::string>(), 200);
  out.spans = std::max<int64_t>(0, out.spans);
  return out;
}

}  // namespace baton::router
