// AnswerFormat: the bytes of an answer in one API's shape, streamed or whole. CompletionAnswer says what happened; each
// API has a format of its own (openai_json.h, messages_format.h, responses_format.h, ollama_format.h). One per answer,
// on its exchange's loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "router/http/http_types.h"
#include "router/http/json_request.h"
#include "router/request/request_driver.h"

namespace baton::router {

/// What is the same on every chunk of an answer.
struct AnswerHead {
  std::string id;       ///< "chatcmpl-…", "cmpl-…"
  int64_t created = 0;  ///< unix seconds
  std::string model;
  bool chat = false;
  bool return_token_ids = false, tokens_as_ids = false;
};

/// A call of a function, or more of one.
struct CallPart {
  int32_t index = 0;
  std::string id, name;  ///< empty: this is more of a call that an earlier chunk began
  std::string arguments;
  size_t at = 0;  ///< so many bytes of the part's text stand before it
};

/// Everything of one choice that a chunk or a whole answer shows.
struct ChoicePart {
  uint32_t index = 0;  ///< over all prompts
  std::string text;
  std::string thoughts;  ///< before the text
  std::vector<int32_t> token_ids;
  std::vector<PositionLogprobs> logprobs;  ///< of all tokens; for /v1/responses: of those of text
  bool wants_logprobs = false;
  size_t text_offset = 0;  ///< text completions: where `logprobs` begin, in characters of their tokens' texts
  std::optional<ChoiceFinish> finish;
  std::vector<CallPart> calls;
  bool called = false;          ///< there is a call, here or in an earlier chunk
  bool ended_in_calls = false;  ///< why `finish` came
};

/// Text and calls of `part` as they were generated. `text` is called with no empty one.
template <class OnText, class OnCall>
void InOrder(const ChoicePart& part, const OnText& text, const OnCall& call) {
  std::string_view rest = part.text;
  size_t shown = 0;
  for (const CallPart& one : part.calls) {
    if (one.at > shown) text(rest.substr(0, one.at - shown));
    rest.remove_prefix(one.at - shown);
    shown = one.at;
    call(one);
  }
  if (!rest.empty()) text(rest);
}

enum class UsageKind : uint8_t { kAbsent, kNull, kGiven };
struct AnswerTail {
  UsageKind usage_kind = UsageKind::kAbsent;
  RequestUsage usage;  ///< so far, whatever its kind
  std::optional<StageTimings> timings;
  bool mixed_numerics = false;                   ///< said beside the timings
  AnswerTimes times{};                           ///< as well
  const std::vector<int32_t>* prompt = nullptr;  ///< its tokens, on a chunk that shows them
};

/// A whole answer. `prompt_logprobs`: [prompts], each empty or for positions 1…; `prompts`: their tokens.
struct WholeParts {
  std::vector<ChoicePart> choices;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::optional<std::vector<PositionLogprobs>>> prompt_logprobs;
  uint32_t choices_per_prompt = 1;
  std::string fingerprint;
  std::optional<uint64_t> seed;
};

/// Hears of an answer that has not failed: as a message of the assistant, and as it is given. Both JSON.
using AnswerKeeper = std::function<void(std::string message, const std::string& answer)>;

class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;

  // ---- streaming: the bytes that are written, perhaps none
  virtual const char* StreamType() const = 0;
  /// `usage` of the tail: of the prompt alone.
  virtual std::string Begin(size_t choices, const AnswerTail& tail) = 0;
  /// Lives until the next call.
  virtual const std::string& Piece(const ChoicePart& part, const AnswerTail& tail) = 0;
  virtual std::string Finish(const ChoicePart& part, const ChoiceFinish& finish, const AnswerTail& tail) = 0;
  /// `tail` has the whole answer's usage; its kind says whether the client asked for it.
  virtual std::string End(const AnswerTail& tail) = 0;
  /// Nothing has been written for long.
  virtual std::string Ping() const { return ": ping\n\n"; }
  /// The end of a stream that failed.
  virtual std::string Broken(const ApiError& error) = 0;
  /// How far the part's logprobs move `text_offset`.
  virtual size_t CharactersOfTokens(const ChoicePart&) const { return 0; }

  // ---- in one piece
  /// Whether Piece is called for a whole answer, too: then Whole has what came behind the last piece.
  virtual bool TakesPieces() const { return false; }
  virtual std::string Whole(const WholeParts& whole, const AnswerTail& tail) = 0;
};

/// The text where it is JSON, else an empty object: the arguments of a call that was cut are none.
std::string JsonOrEmptyObject(const std::string& text);

/// Anthropic's name of the header that has a request's id.
inline constexpr char kMessagesIdHeader[] = "request-id";

/// An error as JSON in the API's shape. `request_id`: for those that tell it.
std::string ErrorText(const ApiError& error, Api api, std::string_view request_id = {});
/// An error as an HTTP answer in the API's shape: status, body, Retry-After; `headers` come along.
HttpResponse ErrorResponse(const ApiError& error, HttpHeaders headers, Api api = Api::kChat);

}  // namespace baton::router
