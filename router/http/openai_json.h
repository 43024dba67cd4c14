// The JSON of OpenAI answers, byte for byte: chunks, whole answers, logprobs, usage. Pure; golden files pin every
// shape.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "router/http/answer_format.h"
#include "router/json_writer.h"

namespace baton::router {

class OpenAiJson final : public AnswerFormat {
 public:
  OpenAiJson(AnswerHead head, const Tokenizer& tokenizer);

  const AnswerHead& head() const { return head_; }

  using Usage = UsageKind;
  using Tail = AnswerTail;

  const char* StreamType() const override { return "text/event-stream; charset=utf-8"; }
  std::string Begin(size_t choices, const AnswerTail& tail) override;
  const std::string& Piece(const ChoicePart& part, const AnswerTail& tail) override { return TextChunk(part, tail); }
  std::string Finish(const ChoicePart& part, const ChoiceFinish& finish, const AnswerTail& tail) override {
    return FinishChunk(part.index, finish, tail, part.ended_in_calls);
  }
  std::string End(const AnswerTail& tail) override;
  std::string Broken(const ApiError& error) override { return ErrorEvent(error) + DoneEvent(); }
  std::string Whole(const WholeParts& whole, const AnswerTail& tail) override { return WholeAnswer(whole, tail); }
  size_t CharactersOfTokens(const ChoicePart& part) const override;

  // ---- streaming: each returns one SSE event, "data: …\n\n"
  std::string RoleChunk(uint32_t index, const Tail& tail) const;
  /// Lives until the next call.
  const std::string& TextChunk(const ChoicePart& part, const Tail& tail);
  /// `calls`: the choice ended with calls of functions.
  std::string FinishChunk(uint32_t index, const ChoiceFinish& finish, const Tail& tail, bool calls = false) const;
  std::string UsageChunk(const Tail& tail) const;
  static std::string ErrorEvent(const ApiError& error);
  static const char* DoneEvent() { return "data: [DONE]\n\n"; }

  std::string WholeAnswer(const WholeParts& whole, const Tail& tail) const;

 private:
  void WriteHead(JsonWriter& w, const char* object) const;
  /// A chunk up to its one choice's index; the writer goes on inside the choice.
  JsonWriter BeginChoice(std::string& out, uint32_t index, size_t text_bytes = 0) const;
  void EndChoice(JsonWriter& w, const Tail& tail, std::string& out) const;
  static void WriteMetrics(JsonWriter& w, const Tail& tail);
  void WriteEnd(JsonWriter& w, const Tail& tail) const;
  void Logprobs(JsonWriter& w, const ChoicePart& part) const;
  void ChatLogprobs(JsonWriter& w, const ChoicePart& part) const;
  void TextLogprobs(JsonWriter& w, const ChoicePart& part) const;
  void PromptLogprobs(JsonWriter& w, const std::vector<int32_t>& prompt,
                      const std::vector<PositionLogprobs>& positions) const;
  static void Thoughts(JsonWriter& w, std::string_view thoughts);
  static void ToolCalls(JsonWriter& w, const std::vector<CallPart>& calls, bool streamed);
  void WriteFinish(JsonWriter& w, const std::optional<ChoiceFinish>& finish, bool calls) const;
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

}  // namespace baton::router
