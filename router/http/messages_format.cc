#include "router/http/messages_format.h"

#include "common/str_cat.h"
#include "router/http/finish_reason.h"

namespace baton::router {
namespace {

std::string NamedEvent(std::string_view type, const std::string& json) {
  return StrCat("event: ", type, "\ndata: ", json, "\n\n");
}

/// "stop_reason":…,"stop_sequence":…
std::string StopMembers(const ChoiceFinish& finish, bool calls) {
  std::string out = StrCat(R"("stop_reason":")", MessagesStopReason(finish, calls), R"(","stop_sequence":)");
  if (finish.stop_string && !calls) {
    AppendJsonString(*finish.stop_string, out);
  } else {
    out += "null";
  }
  if (finish.nothing_allowed) out += StrCat(R"(,"stop_cause":")", kNothingAllowed, "\"");
  return out;
}

constexpr char kNotEnded[] = R"("stop_reason":null,"stop_sequence":null)";

void Usage(JsonWriter& w, const RequestUsage& usage) {
  w.Key("usage").BeginObject().Field("input_tokens", usage.prompt_tokens - usage.cached_tokens);
  w.Field("cache_creation_input_tokens", 0).Field("cache_read_input_tokens", usage.cached_tokens);
  w.Field("output_tokens", usage.completion_tokens).EndObject();
}

}  // namespace

void MessagesFormat::Message(JsonWriter& w, const std::string& content, const std::string& stop,
                             const RequestUsage& usage) const {
  w.BeginObject().Field("id", head_.id).Field("type", "message").Field("role", "assistant");
  w.Field("model", head_.model).Key("content").Raw(content).Raw(stop);
  Usage(w, usage);
  w.EndObject();
}

std::string MessagesFormat::Begin(size_t, const AnswerTail& tail) {
  std::string json;
  JsonWriter w(json);
  w.BeginObject().Field("type", "message_start").Key("message");
  Message(w, "[]", kNotEnded, tail.usage);
  w.EndObject();
  return NamedEvent("message_start", json);
}

void MessagesFormat::Open(Block block, const CallPart& call) {
  if (open_ == block && block != Block::kToolUse) return;
  Close();
  open_ = block;
  std::string json;
  JsonWriter w(json);
  w.BeginObject().Field("type", "content_block_start").Field("index", ++index_).Key("content_block").BeginObject();
  if (block == Block::kThinking) w.Field("type", "thinking").Field("thinking", "").Field("signature", "");
  if (block == Block::kText) w.Field("type", "text").Field("text", "");
  if (block == Block::kToolUse)
    w.Field("type", "tool_use").Field("id", call.id).Field("name", call.name).Key("input").Raw("{}");
  w.EndObject().EndObject();
  out_ += NamedEvent("content_block_start", json);
}

void MessagesFormat::Close() {
  if (open_ == Block::kNone) return;
  open_ = Block::kNone;
  out_ += NamedEvent("content_block_stop", StrCat(R"({"type":"content_block_stop","index":)", index_, "}"));
}

void MessagesFormat::Delta(std::string_view type, std::string_view key, std::string_view text) {
  std::string json;
  JsonWriter w(json);
  w.BeginObject().Field("type", "content_block_delta").Field("index", index_).Key("delta").BeginObject();
  w.Field("type", type).Field(key, text).EndObject().EndObject();
  out_ += NamedEvent("content_block_delta", json);
}

const std::string& MessagesFormat::Piece(const ChoicePart& part, const AnswerTail&) {
  out_.clear();
  if (!part.thoughts.empty()) {
    Open(Block::kThinking);
    Delta("thinking_delta", "thinking", part.thoughts);
  }
  InOrder(
      part,
      [this](std::string_view text) {
        Open(Block::kText);
        Delta("text_delta", "text", text);
      },
      [this](const CallPart& call) {
        if (!call.id.empty()) Open(Block::kToolUse, call);
        if (!call.arguments.empty()) Delta("input_json_delta", "partial_json", call.arguments);
      });
  return out_;
}

std::string MessagesFormat::Finish(const ChoicePart& part, const ChoiceFinish& finish, const AnswerTail&) {
  out_.clear();
  Close();
  stop_ = StopMembers(finish, part.ended_in_calls);
  return std::move(out_);
}

std::string MessagesFormat::End(const AnswerTail& tail) {
  std::string json;
  JsonWriter w(json);
  w.BeginObject().Field("type", "message_delta").Key("delta").Raw(StrCat("{", stop_.empty() ? kNotEnded : stop_, "}"));
  Usage(w, tail.usage);
  w.EndObject();
  return NamedEvent("message_delta", json) + NamedEvent("message_stop", R"({"type":"message_stop"})");
}

std::string MessagesFormat::Broken(const ApiError& error) {
  return NamedEvent("error", ErrorText(error, Api::kMessages));
}

std::string MessagesFormat::Whole(const WholeParts& whole, const AnswerTail& tail) {
  const ChoicePart& part = whole.choices.front();
  std::string content, out;
  JsonWriter w(content);
  w.BeginArray();
  if (!part.thoughts.empty()) {
    w.BeginObject().Field("type", "thinking").Field("thinking", part.thoughts).Field("signature", "").EndObject();
  }
  InOrder(
      part, [&](std::string_view text) { w.BeginObject().Field("type", "text").Field("text", text).EndObject(); },
      [&](const CallPart& call) {
        w.BeginObject().Field("type", "tool_use").Field("id", call.id).Field("name", call.name);
        w.Key("input").Raw(JsonOrEmptyObject(call.arguments)).EndObject();
      });
  w.EndArray();
  JsonWriter message(out);
  Message(message, content, StopMembers(part.finish.value_or(ChoiceFinish{}), part.ended_in_calls), tail.usage);
  return out;
}

}  // namespace baton::router
