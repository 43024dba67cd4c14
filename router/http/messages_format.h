// The answers of Anthropic's /v1/messages: one message of blocks (thinking, text, tool_use), streamed as events that
// open a block, add to it and close it.
#pragma once

#include <string>

#include "router/http/answer_format.h"
#include "router/json_writer.h"

namespace baton::router {

class MessagesFormat final : public AnswerFormat {
 public:
  explicit MessagesFormat(AnswerHead head) : head_(std::move(head)) {}

  const char* StreamType() const override { return "text/event-stream; charset=utf-8"; }
  std::string Begin(size_t choices, const AnswerTail& tail) override;
  const std::string& Piece(const ChoicePart& part, const AnswerTail& tail) override;
  std::string Finish(const ChoicePart& part, const ChoiceFinish& finish, const AnswerTail& tail) override;
  std::string End(const AnswerTail& tail) override;
  std::string Ping() const override { return "event: ping\ndata: {\"type\":\"ping\"}\n\n"; }
  std::string Broken(const ApiError& error) override;
  std::string Whole(const WholeParts& whole, const AnswerTail& tail) override;

 private:
  enum class Block : uint8_t { kNone, kThinking, kText, kToolUse };
  void Open(Block block, const CallPart& call = {});
  void Close();
  void Delta(std::string_view type, std::string_view key, std::string_view text);
  void Message(JsonWriter& w, const std::string& content, const std::string& stop, const RequestUsage& usage) const;

  const AnswerHead head_;
  Block open_ = Block::kNone;
  int32_t index_ = -1;  ///< of the latest block
  std::string stop_;    ///< members that say why the answer ended
  std::string out_;
};

}  // namespace baton::router
