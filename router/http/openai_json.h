// The JSON of OpenAI answers, byte for byte: chunks, whole answers, logprobs, usage. Pure; golden files pin every
// shape.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "router/http/http_types.h"
#include "router/json_writer.h"
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
};

/// Everything of one choice that a chunk or a whole answer shows.
struct ChoicePart {
  uint32_t index = 0;  ///< over all prompts
  std::string text;
  std::vector<int32_t> token_ids;
  std::vector<PositionLogprobs> logprobs;
  bool wants_logprobs = false;
  size_t text_offset = 0;  ///< text completions: where `logprobs` begin, in characters of their tokens' texts
  std::optional<ChoiceFinish> finish;
  std::vector<CallPart> calls;
  bool called = false;  ///< there is a call, here or in an earlier chunk
};

class OpenAiJson {
 public:
  OpenAiJson(AnswerHead head, const Tokenizer& tokenizer);

  const AnswerHead& head() const { return head_; }

  enum class Usage : uint8_t { kAbsent, kNull, kGiven };
  struct Tail {
    Usage usage_kind = Usage::kAbsent;
    RequestUsage usage;
    std::optional<StageTimings> timings;
    bool mixed_numerics = false;  ///< said beside the timings
  };

  // ---- streaming: each returns one SSE event, "data: …\n\n"
  std::string RoleChunk(uint32_t index, const Tail& tail) const;
  /// Lives until the next call.
  const std::string& TextChunk(const ChoicePart& part, const Tail& tail);
  /// `called`: the choice is a call of a function.
  std::string FinishChunk(uint32_t index, const ChoiceFinish& finish, const Tail& tail, bool called = false) const;
  std::string UsageChunk(const Tail& tail) const;
  static std::string ErrorEvent(const ApiError& error);
  static const char* DoneEvent() { return "data: [DONE]\n\n"; }

  /// How far the part's logprobs move `text_offset`.
  size_t CharactersOfTokens(const ChoicePart& part) const;

  /// A whole answer. `prompt_logprobs`: [prompts], each empty or for positions 1…; `prompts`: their tokens.
  struct Whole {
    std::vector<ChoicePart> choices;
    std::vector<std::vector<int32_t>> prompts;
    std::vector<std::optional<std::vector<PositionLogprobs>>> prompt_logprobs;
    uint32_t choices_per_prompt = 1;
    std::string fingerprint;
    std::optional<uint64_t> seed;
  };
  std::string WholeAnswer(const Whole& whole, const Tail& tail) const;

 private:
  void Begin(JsonWriter& w, const char* object) const;
  /// A chunk up to its one choice's index; the writer goes on inside the choice.
  JsonWriter BeginChoice(std::string& out, uint32_t index, size_t text_bytes = 0) const;
  void EndChoice(JsonWriter& w, const Tail& tail, std::string& out) const;
  void End(JsonWriter& w, const Tail& tail) const;
  void Logprobs(JsonWriter& w, const ChoicePart& part) const;
  void ChatLogprobs(JsonWriter& w, const ChoicePart& part) const;
  void TextLogprobs(JsonWriter& w, const ChoicePart& part) const;
  void Candidate(JsonWriter& w, const TokenLogprob& candidate) const;
  void PromptLogprobs(JsonWriter& w, const std::vector<int32_t>& prompt,
                      const std::vector<PositionLogprobs>& positions) const;
  static void ToolCalls(JsonWriter& w, const std::vector<CallPart>& calls, bool streamed);
  void Finish(JsonWriter& w, const std::optional<ChoiceFinish>& finish, bool called) const;
  std::string TokenText(int32_t id) const;

  const AnswerHead head_;
  const Tokenizer& tokenizer_;
  void PlainTextChunk(const ChoicePart& part, Usage usage);
  void AnyTextChunk(const ChoicePart& part, const Tail& tail, std::string& out) const;

  std::string chunk_begin_;   // data: {"id":…,"choices":[{"index":
  std::string plain_end_[2];  // what follows the text of a chunk that has nothing but text: usage absent, null
  std::string chunk_;
};

/// Unicode characters of UTF-8 text.
size_t CharactersOf(std::string_view text);

/// An error as an HTTP answer: status, body, Retry-After; `headers` come along.
HttpResponse ErrorResponse(const ApiError& error, HttpHeaders headers);

}  // namespace baton::router
