// The bodies of the OpenAI endpoints, from JSON (simdjson). Every failure is a 400 that names the field; nothing
// throws. Unknown fields are accepted and listed, unless another was meant (unknown_fields.cc); a known field that is
// not built and would change the answer is refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "common/str_cat.h"
#include "router/dialect/call_form.h"
#include "router/request/request_input.h"

namespace baton::router {

struct JsonLimits {
  size_t max_bytes = 8 << 20;
  size_t max_depth = 64;
  size_t max_prompts = 65536;  ///< in one text completion
  size_t readable_behind = 0;  ///< bytes of memory behind the body, of any value: enough of them save a copy of it
  bool names_differ = false;   ///< of what the client wrote in it
};

/// Whose shape a request and its answer have.
enum class Api : uint8_t { kChat, kText, kMessages, kResponses, kOllamaChat, kOllamaGenerate };

/// What /v1/responses says beside a chat.
struct ResponsesPart {
  std::string instructions, instructions_message;  ///< the message: JSON; "" = none
  std::string previous_id;                         ///< "" = none
  bool store = true;                               ///< later requests may go on from this answer
  std::string echo;                                ///< members that the answer repeats
  std::string input;                               ///< as it came: JSON, a text or items
};

/// A chat's field, and what the client's API calls it.
using Renamed = std::vector<std::pair<std::string, std::string>>;
/// An error that speaks of a chat's field, with the name that the client knows.
ApiError InTheirWords(ApiError error, const Renamed& renamed);

/// A function's schema, as a chat calls it.
inline SchemaPart SchemaOf(const Callable& function) {
  return {StrCat("tools[", function.place, "].function.parameters"), function.schema};
}

/// What chat and text completions share.
struct CompletionRequest {
  RequestInput input;           ///< the prompt is set per prompt, for text completions with several
  std::vector<Prompt> prompts;  ///< one for a chat
  bool chat = false;
  Api api = Api::kChat;
  bool stream = false, include_usage = false, continuous_usage = false;
  bool echo = false;
  bool prompt_only = false;  ///< max_tokens 0 with echo: nothing is generated
  bool include_reasoning = true;
  std::string asks_thoughts;  ///< the field that does so, of an API that has one
  bool return_token_ids = false, return_tokens_as_token_ids = false, return_seed = false;
  std::optional<std::string> json_space;  ///< a pattern of the white space that the grammar's JSON has
  std::string echo_text;                  ///< chat with echo: the last message's text
  std::vector<Callable> callable;         ///< functions that the answer may or must call; empty: it is text
  bool must_call = false, parallel_calls = true;
  std::vector<std::string> unknown_fields;  ///< the first few
  Renamed renamed;                          ///< of fields that the client's API calls otherwise
  const char* loads = nullptr;  ///< Ollama's word where nothing is asked but that the model be loaded, or go
  std::optional<ResponsesPart> responses;
};
std::variant<CompletionRequest, ApiError> ParseChatRequest(std::string_view body, const JsonLimits& limits);
std::variant<CompletionRequest, ApiError> ParseTextRequest(std::string_view body, const JsonLimits& limits);
/// Bodies of other APIs, as chats.
std::variant<CompletionRequest, ApiError> ParseMessagesRequest(std::string_view body, const JsonLimits& limits);
/// As ParseMessagesRequest, of a body that need not say how long an answer may be.
std::variant<CompletionRequest, ApiError> ParseCountTokensRequest(std::string_view body, const JsonLimits& limits);
std::variant<CompletionRequest, ApiError> ParseResponsesRequest(std::string_view body, const JsonLimits& limits);
std::variant<CompletionRequest, ApiError> ParseOllamaChat(std::string_view body, const JsonLimits& limits);
std::variant<CompletionRequest, ApiError> ParseOllamaGenerate(std::string_view body, const JsonLimits& limits);
/// The model that /api/show is asked about.
std::variant<std::string, ApiError> ParseShowRequest(std::string_view body, const JsonLimits& limits);

struct TokenizeRequest {
  std::string model;
  Prompt prompt;
  bool return_token_strs = false;
};
std::variant<TokenizeRequest, ApiError> ParseTokenizeRequest(std::string_view body, const JsonLimits& limits);

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
};
std::variant<DetokenizeRequest, ApiError> ParseDetokenizeRequest(std::string_view body, const JsonLimits& limits);

/// Of /workers/drain and /workers/resume.
struct DrainRequest {
  std::string worker;
  bool force = false;
};
std::variant<DrainRequest, ApiError> ParseDrainRequest(std::string_view body, const JsonLimits& limits);

/// Of /workers/flip.
struct FlipRequest {
  std::string worker, role;
  bool force = false;
  int32_t timeout_ms = 0;
};
std::variant<FlipRequest, ApiError> ParseFlipRequest(std::string_view body, const JsonLimits& limits);

/// Offset of the first byte that is not part of valid UTF-8; npos if all is.
size_t FirstInvalidUtf8(std::string_view text);

}  // namespace baton::router
