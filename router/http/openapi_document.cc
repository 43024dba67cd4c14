// The OpenAPI description, put together from the shapes that its operations share.
#include <initializer_list>
#include <string>
#include <string_view>

#include "common/str_cat.h"
#include "router/http/openai_app.h"

namespace baton::router {
namespace {

constexpr std::string_view kInfo =
    R"("openapi":"3.1.0","info":{"title":"Baton","version":"v1","license":{"name":"Apache-2.0","identifier":"Apache-2.0"}})";

// Properties of chat and text completions alike: sampling, then what the answer holds.
constexpr std::string_view kShared = R"("model":{"type":"string"},
"temperature":{"type":"number","minimum":0},"top_p":{"type":"number","minimum":0,"maximum":1},
"top_k":{"type":"integer","minimum":-1},"min_p":{"type":"number","minimum":0,"maximum":1},
"presence_penalty":{"type":"number","minimum":-2,"maximum":2},
"frequency_penalty":{"type":"number","minimum":-2,"maximum":2},
"repetition_penalty":{"type":"number","exclusiveMinimum":0},
"logit_bias":{"type":"object","additionalProperties":{"type":"number","minimum":-100,"maximum":100}},
"allowed_token_ids":{"type":"array","items":{"type":"integer"}},"min_tokens":{"type":"integer","minimum":0},
"max_tokens":{"type":"integer","minimum":0},
"stop":{"oneOf":[{"type":"string","minLength":1},{"type":"array","items":{"type":"string","minLength":1}}]},
"stop_token_ids":{"type":"array","items":{"type":"integer"}},"ignore_eos":{"type":"boolean"},
"seed":{"type":"integer"},"n":{"type":"integer","minimum":1},"prompt_logprobs":{"type":"integer","minimum":0},
"skip_special_tokens":{"type":"boolean"},"include_stop_str_in_output":{"type":"boolean"},
"priority":{"type":"integer"},"request_id":{"type":"string"},"cache_salt":{"type":"string","minLength":1},
"stream":{"type":"boolean"},"echo":{"type":"boolean"},
"stream_options":{"type":"object","properties":{"include_usage":{"type":"boolean"},
"continuous_usage_stats":{"type":"boolean"}}},"return_token_ids":{"type":"boolean"},
"return_tokens_as_token_ids":{"type":"boolean"},"return_seed":{"type":"boolean"},
"add_special_tokens":{"type":"boolean"})";

// How a chat becomes a prompt: also of /tokenize.
constexpr std::string_view kChatPrompt = R"("messages":{"type":"array","minItems":1,"items":{"type":"object",
"required":["role"],"properties":{"role":{"type":"string"},"content":{}}}},
"add_generation_prompt":{"type":"boolean"},"continue_final_message":{"type":"boolean"},
"chat_template_kwargs":{"type":"object"},"reasoning_effort":{"type":"string"})";

constexpr std::string_view kChatOnly = R"("max_completion_tokens":{"type":"integer","minimum":1},
"logprobs":{"type":"boolean"},"top_logprobs":{"type":"integer","minimum":0},"tools":{"type":"array"},
"tool_choice":{})";

constexpr std::string_view kTextOnly = R"("prompt":{"oneOf":[{"type":"string"},
{"type":"array","items":{"type":"integer"}},{"type":"array","items":{"type":"string"}},
{"type":"array","items":{"type":"array","items":{"type":"integer"}}}]},"logprobs":{"type":"integer","minimum":0})";

constexpr std::string_view kTokenizeOnly = R"("model":{"type":"string"},"add_special_tokens":{"type":"boolean"},
"prompt":{"type":"string"},"return_token_strs":{"type":"boolean"})";

constexpr std::string_view kDetokenize = R"("model":{"type":"string"},
"tokens":{"type":"array","items":{"type":"integer"}})";

constexpr std::string_view kModelParameter =
    R"("parameters":[{"name":"model","in":"path","required":true,"schema":{"type":"string"}}])";

constexpr std::string_view kErrorSchema = R"("Error":{"type":"object","required":["error"],
"properties":{"error":{"type":"object","required":["message","type","param","code"],
"properties":{"message":{"type":"string"},"type":{"type":"string"},"param":{"type":["string","null"]},
"code":{"type":["string","null"]}}}}})";

std::string Responses(std::string_view description) {
  return StrCat(R"("responses":{"200":{"description":")", description,
                R"("},"default":{"description":"An error","content":{"application/json":{"schema":)",
                R"({"$ref":"#/components/schemas/Error"}}}}})");
}

std::string Get(std::string_view path, std::string_view summary, std::string_view more = "") {
  return StrCat("\"", path, R"(":{"get":{"summary":")", summary, "\",", Responses("OK"), more.empty() ? "" : ",", more,
                "}}");
}

/// `required`: a property's name, or empty; `properties`: lists of properties of the JSON body.
std::string Post(std::string_view path, std::string_view summary, std::string_view required,
                 std::initializer_list<std::string_view> properties) {
  std::string all;
  for (const std::string_view some : properties) all += StrCat(all.empty() ? "" : ",", some);
  return StrCat("\"", path, R"(":{"post":{"summary":")", summary, R"(","requestBody":{"required":true,"content":)",
                R"({"application/json":{"schema":{"type":"object",)",
                required.empty() ? "" : StrCat(R"("required":[")", required, "\"],"), R"("properties":{)", all,
                "}}}}},", Responses("The answer (or a stream of server-sent events)"), "}}");
}

std::string MakeDocument() {
  const std::string paths[] = {
      Get("/v1/models", "Models served"),
      Get("/v1/models/{model}", "One model", kModelParameter),
      Post("/v1/chat/completions", "Answer a chat", "messages", {kShared, kChatPrompt, kChatOnly}),
      Post("/v1/completions", "Continue a text", "prompt", {kShared, kTextOnly}),
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
