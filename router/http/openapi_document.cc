// The OpenAPI description, put together from the shapes that its operations share.
#include <deque>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/str_cat.h"
#include "router/http/openai_app.h"
#include "router/sampling_options.h"

namespace baton::router {
namespace {

constexpr std::string_view kInfo =
    R"("openapi":"3.1.0","info":{"title":"Baton","version":"v1","license":{"name":"Apache-2.0","identifier":"Apache-2.0"}})";

#define BATON_TOKEN_ID R"({"type":"integer","minimum":0,"maximum":2147483647})"

/// A property of a JSON body; its schema is without the braces.
struct Property {
  std::string_view name;
  std::string_view schema;
};
constexpr std::string_view kString = R"("type":"string")";
constexpr std::string_view kBoolean = R"("type":"boolean")";
constexpr std::string_view kCount = R"("type":"integer","minimum":0,"maximum":2147483647)";

// Everywhere a null is a field left out, so PropertyText() adds it. The properties of sampling are VisitSampling's.
// Properties of chat and text completions alike, beside sampling: what the answer holds.
constexpr Property kModel = {"model", kString};
constexpr Property kStop = {
    "stop",
    R"("anyOf":[{"type":"string","minLength":1},{"type":"array","maxItems":64,"items":{"type":"string","minLength":1}}])"};
constexpr Property kAnswer[] = {
    {"skip_special_tokens", kBoolean},
    {"include_stop_str_in_output", kBoolean},
    {"priority", R"("type":"integer","minimum":-2147483648,"maximum":2147483647)"},
    {"truncate_prompt_tokens", R"("type":"integer","minimum":-1,"maximum":2147483647,"not":{"const":0})"},
    {"truncation_side", R"("enum":["left","right"])"},
    {"request_id", kString},
    {"bad_words", R"("type":"array","items":{"type":"string","minLength":1})"},
    {"early_stopping", R"("enum":[true,false,"never"])"},
    {"cache_salt", R"("type":"string","minLength":1)"},
    {"prompt_cache_key", R"("type":"string")"},
    {"stream", kBoolean},
    {"echo", kBoolean},
    {"stream_options",
     R"("type":"object","properties":{"include_usage":{"type":["boolean","null"]},"continuous_usage_stats":{"type":["boolean","null"]}})"},
    {"return_token_ids", kBoolean},
    {"return_tokens_as_token_ids", kBoolean},
    {"return_seed", kBoolean},
    {"add_special_tokens", kBoolean},
    {"response_format",
     R"("type":"object","required":["type"],"properties":{"type":{"enum":["text","json_object","json_schema","structural_tag"]}},)"
     R"("if":{"properties":{"type":{"const":"json_schema"}}},"then":{"required":["json_schema"],"properties":)"
     R"({"json_schema":{"type":"object","required":["schema"],"properties":{"name":{"type":["string","null"]},)"
     R"("description":{"type":["string","null"]},"schema":{"type":["object","boolean"]},"strict":{"type":["boolean","null"]}}}}})"},
    {"structured_outputs",
     R"("type":"object","additionalProperties":false,"properties":{"json":{"type":["object","boolean","string","null"]},)"
     R"("regex":{"type":["string","null"],"minLength":1},"grammar":{"type":["string","null"],"minLength":1},)"
     R"("choice":{"type":["array","null"],"minItems":1,"items":{"type":"string","minLength":1}},)"
     R"("json_object":{"type":["boolean","null"]},"disable_fallback":{"type":["boolean","null"]},)"
     R"("disable_any_whitespace":{"type":["boolean","null"]},"whitespace_pattern":{"type":["string","null"],"maxLength":256},)"
     R"("disable_additional_properties":{"enum":[false,null]}})"},
    {"guided_json", R"("anyOf":[{"type":["object","boolean","string"]}])"},
    {"guided_regex", R"("type":"string","minLength":1)"},
    {"guided_choice", R"("type":"array","minItems":1,"items":{"type":"string","minLength":1})"},
    {"guided_grammar", R"("type":"string","minLength":1)"},
    {"guided_json_object", kBoolean},
    {"guided_whitespace_pattern", R"("type":"string","maxLength":256)"},
};

// How a chat becomes a prompt: also of /tokenize. Only the messages of the roles that call may be without content.
constexpr Property kChatPrompt[] = {
    {"messages",
     R"("type":"array","minItems":1,"items":{"type":"object","required":["role"],"properties":{"role":{"type":"string","minLength":1},)"
     R"("content":{"anyOf":[{"type":["string","null"]},{"type":"array","items":{"type":["object","string"],"required":["type","text"],)"
     R"("properties":{"type":{"enum":["text","input_text","output_text"]},"text":{"type":"string"}}}}]}},)"
     R"("if":{"properties":{"role":{"enum":["assistant","function"]}}},"else":{"required":["content"],)"
     R"("properties":{"content":{"type":["string","array"]}}}})"},
    {"add_generation_prompt", kBoolean},
    {"continue_final_message", kBoolean},
    {"chat_template_kwargs", R"("type":"object")"},
    {"reasoning_effort", kString},
};

constexpr Property kChatOnly[] = {
    {"max_completion_tokens", R"("type":"integer","minimum":1,"maximum":2147483647)"},
    {"logprobs", kBoolean},
    {"top_logprobs", kCount},
    {"tools", R"("type":"array","minItems":1)"},
    {"tool_choice", ""},
    {"parallel_tool_calls", kBoolean},
    {"include_reasoning", kBoolean},
    {"thinking_token_budget", R"("type":"integer","minimum":-1,"maximum":2147483647)"},
};

constexpr Property kTextOnly[] = {
    {"prompt", R"("anyOf":[{"type":"string"},{"type":"array","minItems":1,"items":)" BATON_TOKEN_ID
               R"(},{"type":"array","minItems":1,"items":{"type":"string"}},)"
               R"({"type":"array","minItems":1,"items":{"type":"array","minItems":1,"items":)" BATON_TOKEN_ID "}}]"},
    {"logprobs", kCount},
};

constexpr Property kTokenizeOnly[] = {
    {"model", kString}, {"add_special_tokens", kBoolean}, {"prompt", kString}, {"return_token_strs", kBoolean}};

constexpr Property kDetokenize[] = {{"model", kString}, {"tokens", R"("type":"array","items":)" BATON_TOKEN_ID}};

std::string SamplingSchema(const SamplingField& f, const std::optional<float>&) {
  return StrCat(R"("type":"number",")", f.low_open ? "exclusiveMinimum" : "minimum", "\":", f.low,
                f.high == kNoLimit ? "" : StrCat(R"(,"maximum":)", f.high));
}
std::string SamplingSchema(const SamplingField& f, int32_t) {
  return StrCat(R"("type":"integer","minimum":)", f.low, R"(,"maximum":)", std::numeric_limits<int32_t>::max());
}
std::string SamplingSchema(const SamplingField& f, const std::optional<int32_t>&) { return SamplingSchema(f, 0); }
std::string SamplingSchema(const SamplingField&, const std::optional<uint64_t>&) {
  return R"("type":"integer","minimum":-9223372036854775808,"maximum":18446744073709551615)";
}
std::string SamplingSchema(const SamplingField&, const std::optional<bool>&) { return std::string(kBoolean); }
std::string SamplingSchema(const SamplingField& f, const std::vector<int32_t>&) {
  return StrCat(R"("type":"array",)", f.may_be_empty ? "" : R"("minItems":1,)", R"("items":)" BATON_TOKEN_ID);
}
std::string SamplingSchema(const SamplingField& f, const std::vector<std::pair<int32_t, float>>&) {
  return StrCat(R"("type":"object","propertyNames":{"pattern":"^[0-9]+$"},"additionalProperties":)",
                R"({"type":"number","minimum":)", f.low, R"(,"maximum":)", f.high, "}");
}

// Model, sampling and answer; the schemas of sampling are kept in `schemas`.
std::vector<Property> SharedProperties(std::deque<std::string>& schemas) {
  std::vector<Property> shared = {kModel};
  VisitSampling([&](auto member, const SamplingField& field) {
    if (!field.shared_json) return;
    if (field.name == "stop_token_ids") shared.push_back(kStop);  // stop strings stand beside stop tokens
    shared.push_back({field.name, schemas.emplace_back(SamplingSchema(field, SamplingOptions().*member))});
  });
  shared.insert(shared.end(), std::begin(kAnswer), std::end(kAnswer));
  return shared;
}

constexpr std::string_view kModelParameter =
    R"("parameters":[{"name":"model","in":"path","required":true,"schema":{"type":"string"}}])";

constexpr std::string_view kErrorSchema =
    R"("OtherError":{"type":"object","required":["error"]},"Error":{"type":"object","required":["error"],
"properties":{"error":{"type":"object","required":["message","type","param","code"],
"properties":{"message":{"type":"string"},"type":{"type":"string"},"param":{"type":["string","null"]},
"code":{"type":["string","null"]}}}}})";

std::string Responses(std::string_view description, std::string_view error = "Error") {
  return StrCat(R"("responses":{"200":{"description":")", description,
                R"("},"default":{"description":"An error","content":{"application/json":{"schema":)",
                R"({"$ref":"#/components/schemas/)", error, R"("}}}}})");
}

std::string Get(std::string_view path, std::string_view summary, std::string_view more = "") {
  return StrCat("\"", path, R"(":{"get":{"summary":")", summary, "\",", Responses("OK"), more.empty() ? "" : ",", more,
                "}}");
}

std::string OneResponse() {
  constexpr std::string_view kId =
      R"("parameters":[{"name":"response_id","in":"path","required":true,"schema":{"type":"string"}}])";
  constexpr std::string_view kPage =
      R"("parameters":[{"name":"order","in":"query","schema":{"enum":["asc","desc"]}},{"name":"limit","in":"query",)"
      R"("schema":{"type":"integer","minimum":1,"maximum":100}},{"name":"after","in":"query","schema":{"type":"string"}}])";
  return StrCat(R"("/v1/responses/{response_id}":{)", kId, R"(,"get":{"summary":"An earlier answer of /v1/responses",)",
                Responses("The answer"), R"(},"delete":{"summary":"Forgets an earlier answer",)",
                Responses("It is forgotten"), R"(}},"/v1/responses/{response_id}/input_items":{)", kId,
                R"(,"get":{"summary":"What an earlier answer was asked",)", kPage, ",", Responses("Its items"),
                R"(}},"/v1/responses/{response_id}/cancel":{)", kId,
                R"(,"post":{"summary":"An error: no answer is made in the background",)", Responses("Never"), "}}");
}

std::string PropertyText(const Property& property, bool required) {
  constexpr std::string_view kType = R"("type":")";
  std::string_view schema = property.schema;
  if (required || schema.empty()) return StrCat("\"", property.name, "\":{", schema, "}");
  if (!schema.starts_with(kType)) return StrCat("\"", property.name, R"(":{"anyOf":[{"type":"null"},{)", schema, "}]}");
  schema.remove_prefix(kType.size());
  const size_t end = schema.find('"');
  return StrCat("\"", property.name, R"(":{"type":[")", schema.substr(0, end), R"(","null"])", schema.substr(end + 1),
                "}");
}

/// `required`: a property's name, or empty; `lists`: properties of the JSON body.
std::string Post(std::string_view path, std::string_view summary, std::string_view required,
                 std::initializer_list<std::span<const Property>> lists, std::string_view error = "Error") {
  std::string all;
  for (const std::span<const Property> list : lists) {
    for (const Property& property : list) {
      all += StrCat(all.empty() ? "" : ",", PropertyText(property, property.name == required));
    }
  }
  return StrCat("\"", path, R"(":{"post":{"summary":")", summary, R"(","requestBody":{"required":true,"content":)",
                R"({"application/json":{"schema":{"type":"object",)",
                required.empty() ? "" : StrCat(R"("required":[")", required, "\"],"), R"("properties":{)", all,
                "}}}}},", Responses("The answer (or a stream of server-sent events)", error), "}}");
}

std::string MakeDocument() {
  std::deque<std::string> schemas;
  const std::vector<Property> shared = SharedProperties(schemas);
  const std::string paths[] = {
      Get("/v1/models", "Models served"),
      Get("/v1/models/{model}", "One model", kModelParameter),
      Post("/v1/chat/completions", "Answer a chat", "messages", {shared, kChatPrompt, kChatOnly}),
      Post("/v1/completions", "Continue a text", "prompt", {shared, kTextOnly}),
      Post("/v1/messages", "Answer a chat in Anthropic's shape", "messages", {}, "OtherError"),
      Post("/v1/messages/count_tokens", "Tokens of a prompt in Anthropic's shape", "messages", {}, "OtherError"),
      Post("/v1/responses", "Answer items in OpenAI's newer shape", "input", {}),
      Post("/v1/responses/input_tokens", "Tokens of a request of /v1/responses", "input", {}),
      OneResponse(),
      Post("/api/chat", "Answer a chat in Ollama's shape", "", {}, "OtherError"),
      Post("/api/generate", "Answer a prompt in Ollama's shape", "", {}, "OtherError"),
      Get("/api/tags", "Models served, in Ollama's shape"),
      Get("/api/ps", "Models that are loaded, in Ollama's shape"),
      Post("/api/show", "What a model can do, in Ollama's shape", "model", {}, "OtherError"),
      Get("/api/version", "Version, in Ollama's shape"),
      Post("/tokenize", "Token ids of a prompt or chat", "", {kTokenizeOnly, kChatPrompt}),
      Post("/detokenize", "Text of token ids", "tokens", {kDetokenize}),
      Get("/health", "200 when requests can be served"),
      Get("/ping", "As /health"),
      Get("/live", "200 while the process lives"),
      Get("/ready", "200 when ready; 503 with phase and progress"),
      Get("/metrics", "Prometheus metrics"),
      Get("/version", "Version"),
      Get("/load", "Requests in the router"),
      Get("/openapi.json", "This document"),
  };
  std::string document = StrCat("{", kInfo, R"(,"paths":{)");
  for (const std::string& path : paths) document += (&path == paths ? "" : ",") + path;
  return StrCat(document, R"(},"components":{"schemas":{)", kErrorSchema, "}}}");
}

}  // namespace

const std::string& OpenApiDocument() {
  static const std::string document = MakeDocument();
  return document;
}

}  // namespace baton::router
