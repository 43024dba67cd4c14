#include "router/http/ollama_format.h"

#include <algorithm>
#include <ctime>

#include "common/str_cat.h"
#include "router/http/finish_reason.h"
#include "router/http/token_logprobs.h"

namespace baton::router {

std::string Rfc3339(int64_t unix_seconds) {
  const auto seconds = static_cast<time_t>(unix_seconds);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  return {text, strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

OllamaFormat::OllamaFormat(AnswerHead head, const Tokenizer& tokenizer, bool chat)
    : head_(std::move(head)), tokenizer_(tokenizer), chat_(chat), created_at_(Rfc3339(head_.created)) {}

void OllamaFormat::Gather(const ChoicePart& part) {
  logprobs_.insert(logprobs_.end(), part.logprobs.begin(), part.logprobs.end());
  for (const CallPart& call : part.calls) {
    if (!call.id.empty()) {
      calls_.push_back(call);
    } else if (!calls_.empty()) {
      calls_.back().arguments += call.arguments;
    }
  }
}

void OllamaFormat::Line(JsonWriter& w, std::string_view text, std::string_view thoughts, bool with_calls) {
  w.BeginObject().Field("model", head_.model).Field("created_at", created_at_);
  if (chat_) w.Key("message").BeginObject().Field("role", "assistant");
  w.Field(chat_ ? "content" : "response", text);
  if (!thoughts.empty()) w.Field("thinking", thoughts);
  if (with_calls && !calls_.empty()) {
    w.Key("tool_calls").BeginArray();
    for (const CallPart& call : calls_) {
      w.BeginObject().Field("id", call.id).Key("function").BeginObject().Field("name", call.name);
      w.Key("arguments").Raw(JsonOrEmptyObject(call.arguments)).EndObject().EndObject();
    }
    w.EndArray();
  }
  if (chat_) w.EndObject();
  if (logprobs_.empty()) return;
  w.Key("logprobs");
  WriteLogprobs(w, logprobs_, tokenizer_);
  logprobs_.clear();
}

void OllamaFormat::Last(JsonWriter& w, const AnswerTail& tail) const {
  constexpr double kNsPerMs = 1e6;
  const StageTimings t = tail.timings.value_or(StageTimings{});
  double prompt_ms = t.prefill_ms, decode_ms = t.transfer_ms + t.queue_decode_ms + t.first_decode_ms + t.decode_ms;
  if (prompt_ms == 0 && decode_ms == 0) {  // the answer ended at the router, before its worker told its stages
    prompt_ms = tail.times.first_ms;
    decode_ms = tail.times.last_ms - tail.times.first_ms;
  }
  // Clients divide by what something took, be it the one token that came with the prompt.
  const auto ns = [](double ms) { return std::max<int64_t>(1, static_cast<int64_t>(ms * kNsPerMs)); };
  w.Field("done", true).Field("done_reason", reason_);
  w.Field("total_duration", ns(t.queue_prefill_ms + prompt_ms + decode_ms)).Field("load_duration", int64_t{0});
  w.Field("prompt_eval_count", tail.usage.prompt_tokens).Field("prompt_eval_duration", ns(prompt_ms));
  w.Field("eval_count", tail.usage.completion_tokens).Field("eval_duration", ns(decode_ms)).EndObject();
}

const std::string& OllamaFormat::Piece(const ChoicePart& part, const AnswerTail&) {
  out_.clear();
  Gather(part);
  if (part.text.empty() && part.thoughts.empty()) return out_;
  JsonWriter w(out_);
  Line(w, part.text, part.thoughts, false);
  w.Field("done", false).EndObject();
  out_ += "\n";
  return out_;
}

std::string OllamaFormat::Finish(const ChoicePart&, const ChoiceFinish& finish, const AnswerTail&) {
  reason_ = OllamaDoneReason(finish);
  if (calls_.empty()) return "";
  std::string out;
  JsonWriter w(out);
  Line(w, "", "", true);
  w.Field("done", false).EndObject();
  return out + "\n";
}

std::string OllamaFormat::End(const AnswerTail& tail) {
  std::string out;
  JsonWriter w(out);
  Line(w, "", "", false);
  Last(w, tail);
  return out + "\n";
}

std::string OllamaFormat::Broken(const ApiError& error) { return ErrorText(error, Api::kOllamaChat) + "\n"; }

std::string OllamaFormat::Whole(const WholeParts& whole, const AnswerTail& tail) {
  const ChoicePart& part = whole.choices.front();
  if (part.finish) Finish(part, *part.finish, tail);
  Gather(part);
  std::string out;
  JsonWriter w(out);
  Line(w, part.text, part.thoughts, true);
  Last(w, tail);
  return out;
}

}  // namespace baton::router
