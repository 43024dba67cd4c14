// The answers of Ollama's /api/chat and /api/generate: a JSON object a line. Calls come whole, before the last line.
#pragma once

#include <string>
#include <vector>

#include "router/http/answer_format.h"
#include "router/json_writer.h"

namespace baton::router {

class OllamaFormat final : public AnswerFormat {
 public:
  OllamaFormat(AnswerHead head, const Tokenizer& tokenizer, bool chat);

  const char* StreamType() const override { return "application/x-ndjson"; }
  std::string Begin(size_t, const AnswerTail&) override { return ""; }
  const std::string& Piece(const ChoicePart& part, const AnswerTail& tail) override;
  std::string Finish(const ChoicePart& part, const ChoiceFinish& finish, const AnswerTail& tail) override;
  std::string End(const AnswerTail& tail) override;
  std::string Ping() const override { return ""; }
  std::string Broken(const ApiError& error) override;
  std::string Whole(const WholeParts& whole, const AnswerTail& tail) override;

 private:
  void Gather(const ChoicePart& part);
  /// A line up to what says whether it is the last.
  void Line(JsonWriter& w, std::string_view text, std::string_view thoughts, bool with_calls);
  void Last(JsonWriter& w, const AnswerTail& tail) const;

  const AnswerHead head_;
  const Tokenizer& tokenizer_;
  const bool chat_;
  const std::string created_at_;
  std::vector<CallPart> calls_;
  std::vector<PositionLogprobs> logprobs_;  ///< of what the next line shows
  const char* reason_ = "stop";
  std::string out_;
};

/// Seconds since 1970 as Ollama writes a time.
std::string Rfc3339(int64_t unix_seconds);

}  // namespace baton::router
