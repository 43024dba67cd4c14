#include "router/http/responses_format.h"

#include "absl/strings/str_join.h"
#include "common/str_cat.h"
#include "router/http/finish_reason.h"
#include "router/http/token_logprobs.h"

namespace baton::router {
namespace {

/// resp_X → msg_X_0
std::string ItemId(const char* kind, const std::string& response, size_t number) {
  return StrCat(kind, response.substr(std::min(response.find('_') + 1, response.size())), "_", number);
}

}  // namespace

void ResponsesFormat::Emit(std::string_view type, const std::function<void(JsonWriter&)>& members) {
  if (!streams_) return;
  std::string json;
  JsonWriter w(json);
  w.BeginObject().Field("type", type).Field("sequence_number", sequence_++);
  members(w);
  w.EndObject();
  absl::StrAppend(&out_, "event: ", AbslView(type), "\ndata: ", json, "\n\n");
}

std::string ResponsesFormat::Response(const char* status, const RequestUsage* usage, const ApiError* error) const {
  std::string out;
  JsonWriter w(out);
  w.BeginObject().Field("id", head_.id).Field("object", "response").Field("created_at", head_.created);
  w.Field("status", status).Field("model", head_.model).Raw(echo_).Key("error");
  if (error != nullptr) {
    w.BeginObject().Field("code", error->code.empty() ? "server_error" : error->code);
    w.Field("message", error->message).EndObject();
  } else {
    w.Null();
  }
  w.Key("incomplete_details");
  cut_ != nullptr ? w.Raw(StrCat(R"({"reason":")", cut_, R"("})")) : w.Null();
  w.Key("output").Raw(StrCat("[", absl::StrJoin(items_, ","), "]")).Key("usage");
  if (usage != nullptr) {
    w.BeginObject().Field("input_tokens", usage->prompt_tokens).Key("input_tokens_details").BeginObject();
    w.Field("cached_tokens", usage->cached_tokens).EndObject().Field("output_tokens", usage->completion_tokens);
    w.Key("output_tokens_details").BeginObject();
    w.Field("reasoning_tokens", usage->thought_tokens.value_or(0)).EndObject();
    w.Field("total_tokens", usage->prompt_tokens + usage->completion_tokens).EndObject();
  } else {
    w.Null();
  }
  w.EndObject();
  return out;
}

std::string ResponsesFormat::Logprobs(const std::vector<PositionLogprobs>& positions) const {
  std::string out;
  JsonWriter w(out);
  WriteLogprobs(w, positions, tokenizer_);
  return out;
}

std::string ResponsesFormat::PartJson() const {
  std::string out;
  JsonWriter w(out);
  w.BeginObject().Field("type", open_ == Item::kMessage ? "output_text" : "reasoning_text").Field("text", gathered_);
  if (open_ == Item::kMessage) w.Key("annotations").Raw("[]").Key("logprobs").Raw(Logprobs(logprobs_));
  w.EndObject();
  return out;
}

std::string ResponsesFormat::ItemJson(const char* status) const {
  std::string out;
  JsonWriter w(out);
  const bool whole = std::string_view(status) != "in_progress";
  w.BeginObject();
  if (open_ == Item::kCall) {
    w.Field("id", ItemId("fc_", head_.id, items_.size())).Field("type", "function_call").Field("status", status);
    w.Field("call_id", call_.id).Field("name", call_.name).Field("arguments", gathered_);
  } else if (open_ == Item::kMessage) {
    w.Field("id", ItemId("msg_", head_.id, items_.size())).Field("type", "message").Field("status", status);
    w.Field("role", "assistant").Key("content").Raw(whole ? StrCat("[", PartJson(), "]") : "[]");
  } else {
    w.Field("id", ItemId("rs_", head_.id, items_.size())).Field("type", "reasoning").Key("summary").Raw("[]");
    w.Key("content").Raw(whole ? StrCat("[", PartJson(), "]") : "[]").Field("status", status);
  }
  w.EndObject();
  return out;
}

void ResponsesFormat::Place(JsonWriter& w) const {
  const char* kind = open_ == Item::kCall ? "fc_" : open_ == Item::kMessage ? "msg_" : "rs_";
  w.Field("item_id", ItemId(kind, head_.id, items_.size())).Field("output_index", static_cast<int64_t>(items_.size()));
  if (open_ != Item::kCall) w.Field("content_index", 0);
}

void ResponsesFormat::Open(Item item, const CallPart& call) {
  if (open_ == item && item != Item::kCall) return;
  Close();
  open_ = item;
  call_ = call;
  Emit("response.output_item.added", [&](JsonWriter& w) {
    w.Field("output_index", static_cast<int64_t>(items_.size())).Key("item").Raw(ItemJson("in_progress"));
  });
  if (item == Item::kCall) return;
  Emit("response.content_part.added", [&](JsonWriter& w) {
    Place(w);
    w.Key("part").Raw(PartJson());
  });
}

void ResponsesFormat::Add(std::string_view text) {
  gathered_ += text;
  const char* type = open_ == Item::kCall      ? "response.function_call_arguments.delta"
                     : open_ == Item::kMessage ? "response.output_text.delta"
                                               : "response.reasoning_text.delta";
  Emit(type, [&](JsonWriter& w) {
    Place(w);
    w.Field("delta", text);
    if (open_ == Item::kMessage) w.Key("logprobs").Raw(Logprobs(new_logprobs_));
  });
  if (open_ != Item::kMessage) return;
  logprobs_.insert(logprobs_.end(), new_logprobs_.begin(), new_logprobs_.end());
  new_logprobs_.clear();
}

void ResponsesFormat::Close() {
  if (open_ == Item::kNone) return;
  const char* type = open_ == Item::kCall      ? "response.function_call_arguments.done"
                     : open_ == Item::kMessage ? "response.output_text.done"
                                               : "response.reasoning_text.done";
  Emit(type, [&](JsonWriter& w) {
    Place(w);
    if (open_ == Item::kCall) w.Field("name", call_.name);
    w.Field(open_ == Item::kCall ? "arguments" : "text", gathered_);
    if (open_ == Item::kMessage) w.Key("logprobs").Raw(Logprobs(logprobs_));
  });
  if (open_ != Item::kCall) {
    Emit("response.content_part.done", [&](JsonWriter& w) {
      Place(w);
      w.Key("part").Raw(PartJson());
    });
  }
  std::string item = ItemJson(Status());
  Emit("response.output_item.done",
       [&](JsonWriter& w) { w.Field("output_index", static_cast<int64_t>(items_.size())).Key("item").Raw(item); });
  if (open_ == Item::kCall) {
    JsonWriter w(calls_);
    if (!calls_.empty()) calls_ += ",";
    w.BeginObject().Field("id", call_.id).Field("type", "function").Key("function").BeginObject();
    w.Field("name", call_.name).Key("arguments").Raw(JsonOrEmptyObject(gathered_)).EndObject().EndObject();
  } else {
    (open_ == Item::kMessage ? text_ : thoughts_) += gathered_;
  }
  items_.push_back(std::move(item));
  gathered_.clear();
  logprobs_.clear();
  open_ = Item::kNone;
}

void ResponsesFormat::Take(const ChoicePart& part) {
  new_logprobs_.insert(new_logprobs_.end(), part.logprobs.begin(), part.logprobs.end());
  if (!part.thoughts.empty()) {
    Open(Item::kReasoning);
    Add(part.thoughts);
  }
  InOrder(
      part,
      [this](std::string_view text) {
        Open(Item::kMessage);
        Add(text);
      },
      [this](const CallPart& call) {
        if (!call.id.empty()) Open(Item::kCall, call);
        if (!call.arguments.empty()) Add(call.arguments);
      });
}

void ResponsesFormat::KeepAnswer(const std::string& answer) const {
  if (!keep_) return;
  std::string message;
  JsonWriter w(message);
  w.BeginObject().Field("role", "assistant").Field("content", text_);
  if (!thoughts_.empty()) w.Field("reasoning_content", thoughts_);
  if (!calls_.empty()) w.Key("tool_calls").Raw(StrCat("[", calls_, "]"));
  w.EndObject();
  keep_(std::move(message), answer);
}

std::string ResponsesFormat::Begin(size_t, const AnswerTail&) {
  streams_ = true;
  out_.clear();
  for (const char* type : {"response.created", "response.in_progress"}) {
    Emit(type, [&](JsonWriter& w) { w.Key("response").Raw(Response("in_progress", nullptr)); });
  }
  return out_;
}

const std::string& ResponsesFormat::Piece(const ChoicePart& part, const AnswerTail&) {
  out_.clear();
  Take(part);
  return out_;
}

std::string ResponsesFormat::Finish(const ChoicePart& part, const ChoiceFinish& finish, const AnswerTail&) {
  out_.clear();
  if (streams_) Take(part);  // what came behind the last piece
  if (const char* const why = ResponsesCutReason(finish)) cut_ = why;
  if (open_ == Item::kNone && items_.empty()) Open(Item::kMessage);  // an answer of nothing is an empty message
  if (open_ == Item::kMessage && !new_logprobs_.empty()) Add("");    // of tokens behind the text: what ended it
  Close();
  return out_;
}

std::string ResponsesFormat::End(const AnswerTail& tail) {
  out_.clear();
  const std::string answer = Response(Status(), &tail.usage);
  KeepAnswer(answer);
  Emit(cut_ != nullptr ? "response.incomplete" : "response.completed",
       [&](JsonWriter& w) { w.Key("response").Raw(answer); });
  return out_;
}

std::string ResponsesFormat::Broken(const ApiError& error) {
  out_.clear();
  Emit("response.failed", [&](JsonWriter& w) { w.Key("response").Raw(Response("failed", nullptr, &error)); });
  return out_;
}

std::string ResponsesFormat::Whole(const WholeParts& whole, const AnswerTail& tail) {
  const ChoicePart& part = whole.choices.front();
  Take(part);
  Finish(part, part.finish.value_or(ChoiceFinish{}), tail);
  std::string answer = Response(Status(), &tail.usage);
  KeepAnswer(answer);
  return answer;
}

}  // namespace baton::router
