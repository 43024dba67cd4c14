#include "router/http/openai_json.h"

#include <algorithm>

#include "common/str_cat.h"
#include "router/http/finish_reason.h"
#include "router/http/token_logprobs.h"

namespace baton::router {
namespace {

std::string DataEvent(const std::string& json) { return StrCat("data: ", json, "\n\n"); }

void TokenIds(JsonWriter& w, const std::vector<int32_t>& ids) {
  w.BeginArray();
  for (const int32_t id : ids) w.Int(id);
  w.EndArray();
}

}  // namespace

size_t CharactersOf(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

OpenAiJson::OpenAiJson(AnswerHead head, const Tokenizer& tokenizer) : head_(std::move(head)), tokenizer_(tokenizer) {
  JsonWriter w(chunk_begin_);
  WriteHead(w, head_.chat ? "chat.completion.chunk" : "text_completion");
  w.Key("choices").BeginArray().BeginObject().Key("index");
  chunk_begin_.insert(0, "data: ");
}

JsonWriter OpenAiJson::BeginChoice(std::string& out, uint32_t index, size_t text_bytes) const {
  constexpr size_t kRest = 160;  // what follows the text, without logprobs or usage
  out.reserve(chunk_begin_.size() + text_bytes + kRest);
  out = chunk_begin_;
  JsonWriter w(out);
  w.Int(index);
  return w;
}

void OpenAiJson::EndChoice(JsonWriter& w, const Tail& tail, std::string& out) const {
  w.EndObject().EndArray();
  WriteEnd(w, tail);
  out += "\n\n";
}

std::string OpenAiJson::TokenText(int32_t id) const {
  return head_.tokens_as_ids ? StrCat("token_id:", id) : tokenizer_.Decode({&id, 1}, false);
}

size_t OpenAiJson::CharactersOfTokens(const ChoicePart& part) const {
  size_t characters = 0;
  for (const PositionLogprobs& p : part.logprobs) characters += CharactersOf(TokenText(p.chosen.token_id));
  return characters;
}

void OpenAiJson::WriteHead(JsonWriter& w, const char* object) const {
  w.BeginObject()
      .Field("id", head_.id)
      .Field("object", object)
      .Field("created", head_.created)
      .Field("model", head_.model);
}

// vLLM's names; times count from the request's arrival at the router, and there are some for several choices, too.
void OpenAiJson::WriteMetrics(JsonWriter& w, const Tail& tail) {
  const AnswerTimes& t = tail.times;
  const RequestUsage& u = tail.usage;
  const double rate = t.last_ms > 0 ? 1000 * static_cast<double>(u.completion_tokens) / t.last_ms : 0;
  w.Key("metrics").BeginObject();
  w.Field("time_to_first_token_ms", t.first_ms).Field("generation_time_ms", t.last_ms);
  w.Field("queue_time_ms", tail.timings->queue_prefill_ms + tail.timings->queue_decode_ms);
  w.Field("mean_itl_ms", t.gaps > 0 ? t.gaps_ms / static_cast<double>(t.gaps) : 0);
  w.Field("tokens_per_second", rate);
  if (u.thought_tokens) {
    w.Key("output_token_metrics").BeginObject().Field("reasoning", *u.thought_tokens);
    w.Field("content", u.completion_tokens - *u.thought_tokens).EndObject();
  }
  w.EndObject();
}

void OpenAiJson::WriteEnd(JsonWriter& w, const Tail& tail) const {
  if (tail.usage_kind == Usage::kNull) w.NullField("usage");
  if (tail.usage_kind == Usage::kGiven) {
    const RequestUsage& u = tail.usage;
    w.Key("usage").BeginObject();
    w.Field("prompt_tokens", u.prompt_tokens).Field("total_tokens", u.prompt_tokens + u.completion_tokens);
    w.Field("completion_tokens", u.completion_tokens);
    w.Key("prompt_tokens_details").BeginObject().Field("cached_tokens", u.cached_tokens).EndObject();
    if (u.thought_tokens)
      w.Key("completion_tokens_details").BeginObject().Field("reasoning_tokens", *u.thought_tokens).EndObject();
    w.EndObject();
  }
  if (tail.timings) {
    const StageTimings& t = *tail.timings;
    w.Key("timings").BeginObject();
    w.Field("queue_prefill_ms", t.queue_prefill_ms)
        .Field("prefill_ms", t.prefill_ms)
        .Field("transfer_ms", t.transfer_ms);
    w.Field("queue_decode_ms", t.queue_decode_ms)
        .Field("first_decode_ms", t.first_decode_ms)
        .Field("decode_ms", t.decode_ms);
    w.Field("router_ms", t.router_ms).Field("lost_ms", t.lost_ms).Field("reserve_ms", t.reserve_ms);
    w.Field("network_ms", t.network_ms);
    w.EndObject();
    WriteMetrics(w, tail);
    if (tail.mixed_numerics) w.Field("numerics", "mixed");
  }
  w.EndObject();
}

// DeepSeek's name for them, and vLLM's.
void OpenAiJson::Thoughts(JsonWriter& w, std::string_view thoughts) {
  w.Field("reasoning_content", thoughts).Field("reasoning", thoughts);
}

// A later chunk of a call has nothing but more arguments.
void OpenAiJson::ToolCalls(JsonWriter& w, const std::vector<CallPart>& calls, bool streamed) {
  w.Key("tool_calls").BeginArray();
  for (const CallPart& call : calls) {
    w.BeginObject();
    if (streamed) w.Field("index", call.index);
    if (!call.id.empty()) w.Field("id", call.id).Field("type", "function");
    w.Key("function").BeginObject();
    if (!call.id.empty()) w.Field("name", call.name);
    w.Field("arguments", call.arguments).EndObject().EndObject();
  }
  w.EndArray();
}

void OpenAiJson::WriteFinish(JsonWriter& w, const std::optional<ChoiceFinish>& finish, bool calls) const {
  if (!finish) {
    w.NullField("finish_reason");
    if (!head_.chat) w.NullField("stop_reason");
    return;
  }
  w.Field("finish_reason", OpenAiFinishReason(*finish, calls)).Key("stop_reason");
  if (finish->stop_string) {
    w.String(*finish->stop_string);
  } else if (finish->stop_token_id) {
    w.Int(*finish->stop_token_id);
  } else if (finish->nothing_allowed) {
    w.String(kNothingAllowed);
  } else {
    w.Null();
  }
}

void OpenAiJson::ChatLogprobs(JsonWriter& w, const ChoicePart& part) const {
  w.BeginObject().Key("content");
  WriteLogprobs(w, part.logprobs, tokenizer_, [this](int32_t id) { return TokenText(id); });
  w.NullField("refusal").EndObject();
}

void OpenAiJson::TextLogprobs(JsonWriter& w, const ChoicePart& part) const {
  w.BeginObject().Key("text_offset").BeginArray();
  size_t offset = part.text_offset;
  for (const PositionLogprobs& p : part.logprobs) {
    w.Int(static_cast<int64_t>(offset));
    offset += CharactersOf(TokenText(p.chosen.token_id));
  }
  // The first token of an echoed prompt has no logprob: rank 0 marks it.
  w.EndArray().Key("token_logprobs").BeginArray();
  for (const PositionLogprobs& p : part.logprobs) p.chosen.rank == 0 ? w.Null() : w.Float(p.chosen.logprob);
  w.EndArray().Key("tokens").BeginArray();
  for (const PositionLogprobs& p : part.logprobs) w.String(TokenText(p.chosen.token_id));
  w.EndArray().Key("top_logprobs").BeginArray();
  for (const PositionLogprobs& p : part.logprobs) {
    if (p.chosen.rank == 0) {
      w.Null();
      continue;
    }
    w.BeginObject();
    std::vector<std::string> seen;  // two ids may have the same text; an object has each key once
    auto one = [&](const TokenLogprob& c) {
      std::string text = TokenText(c.token_id);
      if (std::find(seen.begin(), seen.end(), text) != seen.end()) return;
      w.Key(text).Float(c.logprob);
      seen.push_back(std::move(text));
    };
    for (const TokenLogprob& top : p.top) one(top);
    one(p.chosen);
    w.EndObject();
  }
  w.EndArray().EndObject();
}

void OpenAiJson::Logprobs(JsonWriter& w, const ChoicePart& part) const {
  w.Key("logprobs");
  if (!part.wants_logprobs || part.logprobs.empty()) {
    w.Null();
  } else if (head_.chat) {
    ChatLogprobs(w, part);
  } else {
    TextLogprobs(w, part);
  }
}

std::string OpenAiJson::RoleChunk(uint32_t index, const Tail& tail) const {
  std::string out;
  JsonWriter w = BeginChoice(out, index);
  w.Key("delta").BeginObject().Field("role", "assistant").Field("content", "").EndObject();
  w.NullField("logprobs").NullField("finish_reason").EndObject().EndArray();
  if (tail.prompt != nullptr) TokenIds(w.Key("prompt_token_ids"), *tail.prompt);
  WriteEnd(w, tail);
  out += "\n\n";
  return out;
}

// Most chunks have nothing but text. What stands around it is taken from one chunk that was built as all others are.
void OpenAiJson::PlainTextChunk(const ChoicePart& part, Usage usage) {
  const std::string_view text_key = head_.chat ? R"(,"delta":{"content":)" : R"(,"text":)";
  std::string& end = plain_end_[usage == Usage::kNull];
  if (end.empty()) {
    std::string empty;
    AnyTextChunk(ChoicePart{}, Tail{.usage_kind = usage}, empty);
    constexpr size_t kIndexAndText = 3;  // 0 and ""
    end = empty.substr(chunk_begin_.size() + text_key.size() + kIndexAndText);
  }
  chunk_ = chunk_begin_;
  absl::StrAppend(&chunk_, part.index, AbslView(text_key));
  AppendJsonString(part.text, chunk_);
  chunk_ += end;
}

void OpenAiJson::AnyTextChunk(const ChoicePart& part, const Tail& tail, std::string& out) const {
  JsonWriter w = BeginChoice(out, part.index, part.text.size());
  if (!part.calls.empty() || !part.thoughts.empty()) {
    w.Key("delta").BeginObject();
    if (!part.thoughts.empty()) Thoughts(w, part.thoughts);
    if (!part.text.empty()) w.Field("content", part.text);
    if (!part.calls.empty()) ToolCalls(w, part.calls, /*streamed=*/true);
    w.EndObject();
  } else if (head_.chat) {
    w.Key("delta").BeginObject().Field("content", part.text).EndObject();
  } else {
    w.Field("text", part.text);
  }
  Logprobs(w, part);
  WriteFinish(w, std::nullopt, false);
  if (head_.return_token_ids) TokenIds(w.Key("token_ids"), part.token_ids);
  if (tail.prompt != nullptr) TokenIds(w.Key("prompt_token_ids"), *tail.prompt);
  EndChoice(w, tail, out);
}

const std::string& OpenAiJson::TextChunk(const ChoicePart& part, const Tail& tail) {
  const bool plain =
      part.calls.empty() && part.thoughts.empty() && part.logprobs.empty() && !head_.return_token_ids && !tail.timings;
  if (plain && tail.usage_kind != Usage::kGiven) {
    PlainTextChunk(part, tail.usage_kind);
  } else {
    AnyTextChunk(part, tail, chunk_);
  }
  return chunk_;
}

std::string OpenAiJson::FinishChunk(uint32_t index, const ChoiceFinish& finish, const Tail& tail, bool calls) const {
  std::string out;
  JsonWriter w = BeginChoice(out, index);
  if (head_.chat) {
    w.Key("delta").BeginObject().EndObject();
  } else {
    w.Field("text", "");
  }
  w.NullField("logprobs");
  WriteFinish(w, finish, calls);
  if (tail.prompt != nullptr) TokenIds(w.Key("prompt_token_ids"), *tail.prompt);
  EndChoice(w, tail, out);
  return out;
}

std::string OpenAiJson::UsageChunk(const Tail& tail) const {
  std::string out;
  JsonWriter w(out);
  WriteHead(w, head_.chat ? "chat.completion.chunk" : "text_completion");
  w.Key("choices").BeginArray().EndArray();
  WriteEnd(w, tail);
  return DataEvent(out);
}

std::string OpenAiJson::ErrorEvent(const ApiError& error) { return DataEvent(ErrorJson(error)); }

std::string OpenAiJson::Begin(size_t choices, const AnswerTail& tail) {
  std::string out;
  AnswerTail later = tail;
  later.prompt = nullptr;
  for (uint32_t i = 0; head_.chat && i < choices; ++i) out += RoleChunk(i, i == 0 ? tail : later);
  return out;
}

std::string OpenAiJson::End(const AnswerTail& tail) {
  return (tail.usage_kind == Usage::kGiven ? UsageChunk(tail) : "") + DoneEvent();
}

void OpenAiJson::PromptLogprobs(JsonWriter& w, const std::vector<int32_t>& prompt,
                                const std::vector<PositionLogprobs>& positions) const {
  w.Key("prompt_logprobs").BeginArray();
  if (!prompt.empty()) w.Null();
  for (const PositionLogprobs& p : positions) {
    w.BeginObject();
    auto one = [&](const TokenLogprob& c) {
      w.Key(std::to_string(c.token_id)).BeginObject().Key("logprob").Float(c.logprob).Field("rank", c.rank);
      w.Field("decoded_token", TokenText(c.token_id)).EndObject();
    };
    one(p.chosen);
    for (const TokenLogprob& top : p.top) {
      if (top.token_id != p.chosen.token_id) one(top);
    }
    w.EndObject();
  }
  w.EndArray();
}

std::string OpenAiJson::WholeAnswer(const WholeParts& whole, const Tail& tail) const {
  std::string out;
  JsonWriter w(out);
  WriteHead(w, head_.chat ? "chat.completion" : "text_completion");
  w.Key("choices").BeginArray();
  for (const ChoicePart& part : whole.choices) {
    const size_t prompt = part.index / whole.choices_per_prompt;
    w.BeginObject().Field("index", part.index);
    if (head_.chat) {
      w.Key("message").BeginObject().Field("role", "assistant");
      part.called&& part.text.empty() ? w.NullField("content") : w.Field("content", part.text);
      w.NullField("refusal");
      if (!part.thoughts.empty()) Thoughts(w, part.thoughts);
      if (part.called) ToolCalls(w, part.calls, /*streamed=*/false);
      w.EndObject();
    } else {
      w.Field("text", part.text);
    }
    Logprobs(w, part);
    WriteFinish(w, part.finish, part.ended_in_calls);
    if (!head_.chat && whole.prompt_logprobs[prompt])
      PromptLogprobs(w, whole.prompts[prompt], *whole.prompt_logprobs[prompt]);
    if (head_.return_token_ids) {
      TokenIds(w.Key("token_ids"), part.token_ids);
      if (!head_.chat) TokenIds(w.Key("prompt_token_ids"), whole.prompts[prompt]);
    }
    w.EndObject();
  }
  w.EndArray().Field("system_fingerprint", whole.fingerprint);
  if (head_.chat && whole.prompt_logprobs[0]) PromptLogprobs(w, whole.prompts[0], *whole.prompt_logprobs[0]);
  if (head_.chat && head_.return_token_ids) TokenIds(w.Key("prompt_token_ids"), whole.prompts[0]);
  if (whole.seed) w.Key("seed").Uint(*whole.seed);
  WriteEnd(w, tail);
  return out;
}

}  // namespace baton::router
