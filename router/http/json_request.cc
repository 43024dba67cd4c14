#include "router/http/json_request.h"

#include <utility>

#include "proto/order_limits.h"
#include "router/http/json_reader.h"
#include "router/json_writer.h"

namespace baton::router {
namespace {
using json::Document;
using json::Element;
using json::MaybeError;
using json::Read;

constexpr int32_t kNoBudget = -1;  // as in vLLM

struct ChatFields {
  ChatPrompt prompt;
  json::LastMessage last;
  bool has_messages = false, logprobs = false, parallel_tool_calls = true, include_reasoning = true;
  int32_t top_logprobs = 0;
  std::optional<int32_t> max_completion_tokens;
  std::optional<Element> tools, tool_choice;
  bool has_generation_prompt = false;
  std::optional<std::string> reasoning_effort;
  std::optional<int32_t> thinking_budget;
};

// The template's variables: those given by name, and `reasoning_effort`, unless it is among them.
std::string TemplateVariables(const ChatFields& c) {
  const std::string& given = c.prompt.kwargs_json;
  if (!c.reasoning_effort) return given;
  std::string out;
  JsonWriter(out).BeginObject().Field("reasoning_effort", *c.reasoning_effort);
  return out + (given.size() > 2 ? "," + given.substr(1) : "}");  // of two equal names the last counts
}

MaybeError ReadChatField(std::string_view key, Element e, ChatFields& c, bool& known) {
  known = true;
  if (key == "messages") {
    c.has_messages = true;
    return json::ReadMessages(e, c.prompt.messages_json, c.last);
  }
  if (key == "max_completion_tokens") return Read(key, e, c.max_completion_tokens);
  if (key == "logprobs") return Read(key, e, c.logprobs);
  if (key == "top_logprobs") return Read(key, e, c.top_logprobs);
  if (key == "add_generation_prompt") {
    c.has_generation_prompt = true;
    return Read(key, e, c.prompt.add_generation_prompt);
  }
  if (key == "continue_final_message") return Read(key, e, c.prompt.continue_final_message);
  if (key == "add_special_tokens") return Read(key, e, c.prompt.add_special_tokens);
  if (key == "include_reasoning") return Read(key, e, c.include_reasoning);
  if (key == "thinking_token_budget") return Read(key, e, c.thinking_budget);
  if (key == "reasoning_effort") return Read(key, e, c.reasoning_effort);
  if (key == "chat_template_kwargs") {
    simdjson::dom::object object;
    if (e.get_object().get(object)) return json::WrongType(key, "an object", e);
    c.prompt.kwargs_json = json::HeldText(e);
    return std::nullopt;
  }
  if (key == "tools") {
    simdjson::dom::array tools;
    if (e.get_array().get(tools)) return json::WrongType(key, "an array", e);
    if (tools.size() == 0) return BadRequest("`tools` is an empty array; leave it out instead.", "tools");
    c.tools = e;
    c.prompt.tools_json = json::HeldText(e);
    return std::nullopt;
  }
  if (key == "tool_choice") {
    c.tool_choice = e;
    return std::nullopt;
  }
  if (key == "parallel_tool_calls") return Read(key, e, c.parallel_tool_calls);
  known = false;
  return std::nullopt;
}

MaybeError FinishChat(ChatFields& c, CompletionRequest& r) {
  if (!c.has_messages) return BadRequest("`messages` is required.", "messages");
  if (c.tools) {
    if (auto error = json::TakeTools(*c.tools, c.tool_choice, r)) return error;
  } else if (std::string_view word; c.tool_choice && (c.tool_choice->get_string().get(word) || word != "none")) {
    return BadRequest("`tool_choice` needs `tools`.", "tool_choice");
  }
  if (c.top_logprobs != 0 && !c.logprobs) return BadRequest("`top_logprobs` needs `logprobs: true`.", "top_logprobs");
  if (c.max_completion_tokens) {  // max_tokens is its old name
    r.input.sampling.max_tokens = c.max_completion_tokens;
    r.input.max_tokens_field = "max_completion_tokens";
  }
  if (c.logprobs) {
    r.input.sampling.logprobs = c.top_logprobs;
    r.input.logprobs_field = "top_logprobs";
  }
  if (c.prompt.continue_final_message && c.has_generation_prompt && c.prompt.add_generation_prompt) {
    return BadRequest("`continue_final_message` and `add_generation_prompt` exclude each other.",
                      "continue_final_message");
  }
  if (c.prompt.continue_final_message) c.prompt.add_generation_prompt = false;
  r.parallel_calls = c.parallel_tool_calls;
  r.include_reasoning = c.include_reasoning;
  r.input.splits_thoughts = true;
  if (c.thinking_budget != kNoBudget) r.input.thinking_budget = c.thinking_budget;
  // As vLLM has it: an answer begins with the last message if that is the same speaker's.
  r.echo = r.echo && (c.last.role == "assistant" || !c.prompt.add_generation_prompt);
  if (r.echo) r.echo_text = std::string(c.last.text);
  c.prompt.kwargs_json = TemplateVariables(c);
  r.prompts.emplace_back(std::move(c.prompt));
  return std::nullopt;
}

MaybeError ReadPrompts(Element e, bool add_special_tokens, size_t max_prompts, std::vector<Prompt>& out) {
  std::string_view text;
  if (!e.get_string().get(text)) {
    out.emplace_back(TextPrompt{std::string(text), add_special_tokens});
    return std::nullopt;
  }
  simdjson::dom::array array;
  if (e.get_array().get(array)) return json::WrongType("prompt", "a string, token ids, or a list of either", e);
  if (array.begin() == array.end()) return BadRequest("`prompt` is an empty array.", "prompt");
  if (array.at(0).is_number()) {
    TokensPrompt ids;
    if (auto error = Read("prompt", e, ids)) return error;
    out.emplace_back(std::move(ids));
    return std::nullopt;
  }
  if (array.size() > max_prompts) {
    return BadRequest(StrCat("`prompt` has ", array.size(), " prompts, at most ", max_prompts, " are possible."),
                      "prompt");
  }
  for (Element one : array) {
    TokensPrompt ids;
    if (!one.get_string().get(text)) {
      out.emplace_back(TextPrompt{std::string(text), add_special_tokens});
    } else if (auto error = Read("prompt", one, ids)) {
      return error;
    } else {
      out.emplace_back(std::move(ids));
    }
  }
  return std::nullopt;
}

MaybeError FinishShared(CompletionRequest& r, bool has_stream_options) {
  if (auto error = json::FinishGrammar(r)) return error;
  if (has_stream_options && !r.stream)
    return BadRequest("`stream_options` is only allowed with `stream: true`.", "stream_options");
  const SamplingOptions& s = r.input.sampling;
  if (r.stream && IsBeamSearch(s)) {
    return BadRequest("`stream` is not available with `use_beam_search`: no token is final before the search is over.",
                      "stream");
  }
  if (r.stream && s.best_of.value_or(1) > s.n) {
    return BadRequest(StrCat("`stream` is not available with a `best_of` (", *s.best_of, ") greater than `n` (", s.n,
                             "): which choices are the best is known at their end."),
                      "stream");
  }
  if (r.stream && r.input.sampling.prompt_logprobs)
    return BadRequest("`prompt_logprobs` is not available with `stream: true`.", "prompt_logprobs");
  return std::nullopt;
}

// False: nobody knows the field.
bool ReadCommonField(std::string_view key, Element e, CompletionRequest& r, MaybeError& error) {
  return json::ReadSharedField(key, e, r, error) || json::ReadGrammarField(key, e, r, error) ||
         json::ReadRefusedField(key, e, error) || json::ReadIgnoredField(key, e, error);
}

// Refuses a field that was meant to be another; notes it else.
MaybeError TakeUnknown(std::string_view key, const Document& document, CompletionRequest& r) {
  if (MaybeError error = json::MeantField(key, document.root, r.chat)) return error;
  json::NoteUnknown(r, std::string(key.substr(0, 64)));
  return std::nullopt;
}

// Every `ours` and `ours.member` of a message.
void RenameQuoted(const std::string& ours, const std::string& theirs, std::string& message) {
  const std::string quoted = StrCat("`", ours);
  for (size_t at = message.find(quoted); at != std::string::npos; at = message.find(quoted, at + 1)) {
    const size_t behind = at + quoted.size();
    if (behind < message.size() && (message[behind] == '`' || message[behind] == '.'))
      message.replace(at, quoted.size(), StrCat("`", theirs));
  }
}

}  // namespace

ApiError InTheirWords(ApiError error, const Renamed& renamed) {
  bool found = false;
  for (const auto& [ours, theirs] : renamed) {
    if (ours.front() == ']') {  // a member of a list
      for (std::string* text : {&error.message, &error.param}) {
        const size_t at = text->find(ours);
        if (at != std::string::npos) text->replace(at, ours.size(), theirs);
      }
      continue;
    }
    RenameQuoted(ours, theirs, error.message);
    if (found || (error.param != ours && !error.param.starts_with(ours + "."))) continue;
    error.param.replace(0, ours.size(), theirs);
    found = true;
  }
  return error;
}

std::variant<CompletionRequest, ApiError> ParseChatRequest(std::string_view body, const JsonLimits& limits) {
  Document document;
  if (auto error = json::Parse(body, limits, document)) return *std::move(error);
  CompletionRequest r;
  r.chat = true;
  ChatFields chat;
  chat.prompt.messages_json.reserve(body.size());
  bool has_stream_options = false;
  for (auto [key, value] : document.root) {
    if (value.is_null()) continue;
    bool known = false;
    MaybeError error = ReadChatField(key, value, chat, known);
    if (!known) known = ReadCommonField(key, value, r, error);
    if (!known) error = TakeUnknown(key, document, r);
    if (error) return *std::move(error);
    has_stream_options = has_stream_options || key == "stream_options";
  }
  if (auto error = FinishChat(chat, r)) return *std::move(error);
  if (auto error = FinishShared(r, has_stream_options)) return *std::move(error);
  return r;
}

std::variant<CompletionRequest, ApiError> ParseTextRequest(std::string_view body, const JsonLimits& limits) {
  Document document;
  if (auto error = json::Parse(body, limits, document)) return *std::move(error);
  CompletionRequest r;
  r.input.default_max_tokens = 16;
  bool add_special_tokens = true, has_stream_options = false;
  std::optional<Element> prompt;
  for (auto [key, value] : document.root) {
    if (value.is_null()) continue;
    MaybeError error;
    bool known = true;
    if (key == "prompt") {
      prompt = value;
    } else if (key == "logprobs") {
      error = Read(key, value, r.input.sampling.logprobs);
    } else if (key == "add_special_tokens") {
      error = Read(key, value, add_special_tokens);
    } else {
      known = ReadCommonField(key, value, r, error);
    }
    if (!known) error = TakeUnknown(key, document, r);
    if (error) return *std::move(error);
    has_stream_options = has_stream_options || key == "stream_options";
  }
  if (!prompt) return BadRequest("`prompt` is required.", "prompt");
  if (auto error = ReadPrompts(*prompt, add_special_tokens, limits.max_prompts, r.prompts)) return *std::move(error);
  if (auto error = FinishShared(r, has_stream_options)) return *std::move(error);
  if (r.echo && r.input.sampling.max_tokens == 0) {
    r.prompt_only = true;
    r.input.sampling.max_tokens = 1;
  }
  if (r.echo && r.input.sampling.logprobs) r.input.sampling.prompt_logprobs = r.input.sampling.logprobs;
  return r;
}

std::variant<TokenizeRequest, ApiError> ParseTokenizeRequest(std::string_view body, const JsonLimits& limits) {
  Document document;
  if (auto error = json::Parse(body, limits, document)) return *std::move(error);
  TokenizeRequest r;
  CompletionRequest shared;
  ChatFields chat;
  std::optional<std::string> text;
  std::optional<bool> add_special_tokens;
  for (auto [key, value] : document.root) {
    if (value.is_null()) continue;
    MaybeError error;
    bool known = false;
    if (key == "model")
      error = Read(key, value, r.model);
    else if (key == "prompt")
      error = Read(key, value, text);
    else if (key == "return_token_strs")
      error = Read(key, value, r.return_token_strs);
    else if (key == "add_special_tokens")
      error = Read(key, value, add_special_tokens);
    else
      error = ReadChatField(key, value, chat, known);
    if (error) return *std::move(error);
  }
  if (text.has_value() == chat.has_messages)
    return BadRequest("Exactly one of `prompt` and `messages` is required.", "prompt");
  if (text) {
    r.prompt = TextPrompt{*std::move(text), add_special_tokens.value_or(true)};
  } else {
    chat.prompt.add_special_tokens = add_special_tokens.value_or(false);
    if (chat.prompt.continue_final_message) chat.prompt.add_generation_prompt = false;
    chat.prompt.kwargs_json = TemplateVariables(chat);
    r.prompt = std::move(chat.prompt);
  }
  return r;
}

std::variant<DrainRequest, ApiError> ParseDrainRequest(std::string_view body, const JsonLimits& limits) {
  Document document;
  if (auto error = json::Parse(body, limits, document)) return *std::move(error);
  DrainRequest r;
  for (auto [key, value] : document.root) {
    MaybeError error;
    if (key == "worker") {
      error = Read(key, value, r.worker);
    } else if (key == "force") {
      error = Read(key, value, r.force);
    } else {
      error = BadRequest(StrCat("`", key, "` is unknown; there are `worker` and `force`."), std::string(key));
    }
    if (error) return *std::move(error);
  }
  if (r.worker.empty()) return BadRequest("`worker` is required: a worker's name or address.", "worker");
  return r;
}

std::variant<FlipRequest, ApiError> ParseFlipRequest(std::string_view body, const JsonLimits& limits) {
  Document document;
  if (auto error = json::Parse(body, limits, document)) return *std::move(error);
  FlipRequest r;
  for (auto [key, value] : document.root) {
    MaybeError error;
    if (key == "worker") {
      error = Read(key, value, r.worker);
    } else if (key == "role") {
      error = Read(key, value, r.role);
    } else if (key == "force") {
      error = Read(key, value, r.force);
    } else if (key == "timeout_ms") {
      error = Read(key, value, r.timeout_ms);
    } else {
      error = BadRequest(StrCat("`", key, "` is unknown; there are `worker`, `role`, `force` and `timeout_ms`."),
                         std::string(key));
    }
    if (error) return *std::move(error);
  }
  if (r.worker.empty()) return BadRequest("`worker` is required: a worker's name or address.", "worker");
  if (r.role != "prefill" && r.role != "decode")
    return BadRequest(StrCat("`role` is \"", r.role, "\"; it may be prefill or decode."), "role");
  if (r.timeout_ms < 0 || r.timeout_ms > static_cast<int64_t>(kMostDeadlineMs)) {
    return BadRequest(StrCat("`timeout_ms` is ", r.timeout_ms, "; it may be 0 to ", kMostDeadlineMs, "."),
                      "timeout_ms");
  }
  return r;
}

std::variant<DetokenizeRequest, ApiError> ParseDetokenizeRequest(std::string_view body, const JsonLimits& limits) {
  Document document;
  if (auto error = json::Parse(body, limits, document)) return *std::move(error);
  DetokenizeRequest r;
  bool has_tokens = false;
  for (auto [key, value] : document.root) {
    if (value.is_null()) continue;
    MaybeError error;
    if (key == "model") error = Read(key, value, r.model);
    if (key == "tokens") {
      has_tokens = true;
      error = Read(key, value, r.tokens);
    }
    if (error) return *std::move(error);
  }
  if (!has_tokens) return BadRequest("`tokens` is required.", "tokens");
  return r;
}

}  // namespace baton::router
