// The answers of OpenAI's /v1/responses: a list of items (reasoning, message, function_call), streamed as numbered
// events that begin an item, add to it and end it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "router/http/answer_format.h"
#include "router/json_writer.h"

namespace baton::router {

class ResponsesFormat final : public AnswerFormat {
 public:
  ResponsesFormat(AnswerHead head, const Tokenizer& tokenizer, std::string echo, AnswerKeeper keep)
      : head_(std::move(head)), tokenizer_(tokenizer), echo_(std::move(echo)), keep_(std::move(keep)) {}

  const char* StreamType() const override { return "text/event-stream; charset=utf-8"; }
  std::string Begin(size_t choices, const AnswerTail& tail) override;
  const std::string& Piece(const ChoicePart& part, const AnswerTail& tail) override;
  std::string Finish(const ChoicePart& part, const ChoiceFinish& finish, const AnswerTail& tail) override;
  std::string End(const AnswerTail& tail) override;
  std::string Broken(const ApiError& error) override;
  /// Every message has logprobs of its own, and an answer may have several.
  bool TakesPieces() const override { return true; }
  std::string Whole(const WholeParts& whole, const AnswerTail& tail) override;

 private:
  enum class Item : uint8_t { kNone, kReasoning, kMessage, kCall };
  /// Adds `part`, whose logprobs are of text, to items_, as events or without.
  void Take(const ChoicePart& part);
  void Open(Item item, const CallPart& call = {});
  void Close();
  void Add(std::string_view text);
  std::string ItemJson(const char* status) const;
  std::string PartJson() const;
  std::string Logprobs(const std::vector<PositionLogprobs>& positions) const;
  /// The place of an event's text: item, index of it, index in it.
  void Place(JsonWriter& w) const;
  void Emit(std::string_view type, const std::function<void(JsonWriter&)>& members);
  std::string Response(const char* status, const RequestUsage* usage, const ApiError* error = nullptr) const;
  void KeepAnswer(const std::string& answer) const;
  const char* Status() const { return cut_ != nullptr ? "incomplete" : "completed"; }

  const AnswerHead head_;
  const Tokenizer& tokenizer_;
  const std::string echo_;
  const AnswerKeeper keep_;
  bool streams_ = false;
  const char* cut_ = nullptr;  ///< why the answer is incomplete
  int64_t sequence_ = 0;
  Item open_ = Item::kNone;
  CallPart call_;                                          ///< of an open call
  std::string gathered_;                                   ///< text of the open item
  std::vector<PositionLogprobs> new_logprobs_, logprobs_;  ///< of text that comes next, and of the open message
  std::vector<std::string> items_;                         ///< JSON of those that have ended
  std::string text_, thoughts_, calls_;
  std::string out_;
};

}  // namespace baton::router
