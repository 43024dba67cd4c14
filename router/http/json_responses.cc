// The body of OpenAI's /v1/responses as a chat: its items become messages, calls and results. The chat's own reader
// does the rest; the turns before `previous_response_id` are put in front later (response_memory.h).
#include <algorithm>
#include <iterator>

#include "common/foreign_text.h"
#include "router/http/json_chat.h"
#include "router/json_writer.h"

namespace baton::router {
namespace {
using json::Document;
using json::Element;
using json::MaybeError;

MaybeError BadItem(const std::string& where, std::string_view why) {
  return BadRequest(StrCat("`", where, "` ", why), "input");
}

constexpr std::string_view kTextParts[] = {"input_text",   "output_text",    "text",
                                           "summary_text", "reasoning_text", "refusal"};
constexpr std::string_view kRoles[] = {"user", "assistant", "system", "developer"};
constexpr json::PartKinds kParts = {"input", kTextParts};

/// Calls that follow each other, and the text and thoughts before them, are one message of the assistant.
class ItemWriter {
 public:
  MaybeError Take(const std::string& where, Element item) {
    std::string_view type = "message";
    Element given;
    if (!item["type"].get(given) && given.get_string().get(type)) return BadItem(where, "needs a string `type`.");
    if (type == "message") return TakeMessage(where, item);
    if (type == "function_call") return TakeCall(where, item);
    if (type == "function_call_output") return TakeResult(where, item);
    if (type == "reasoning") return TakeThoughts(where, item);
    return NotBuilt("input", StrCat("an item of type \"", type, "\""));
  }

  std::string Finish() {
    Flush();
    return std::move(out_);
  }

 private:
  MaybeError TakeMessage(const std::string& where, Element item) {
    std::string_view role;
    Element content;
    if (item["role"].get_string().get(role)) return BadItem(where, "needs a string `role`.");
    if (std::ranges::find(kRoles, role) == std::end(kRoles)) {
      return BadItem(where, StrCat("has the role \"", Printable(role, 40),
                                   "\"; there are user, assistant, system and developer."));
    }
    if (item["content"].get(content)) return BadItem(where, "needs `content`.");
    std::string text;
    if (auto error = json::JoinText(content, where + ".content", kParts, text)) return error;
    if (role == "assistant") {
      if (has_text_ || !calls_.empty()) Flush();
      text_ = text;
      has_text_ = true;
      return std::nullopt;
    }
    Flush();
    w_.BeginObject().Field("role", role).Field("content", text).EndObject();
    return std::nullopt;
  }

  MaybeError TakeCall(const std::string& where, Element item) {
    std::string_view id, name, arguments;
    if (item["call_id"].get_string().get(id) || item["name"].get_string().get(name) ||
        item["arguments"].get_string().get(arguments))
      return BadItem(where, "needs the strings `call_id`, `name` and `arguments`.");
    if (!calls_.empty()) calls_ += ",";
    JsonWriter w(calls_);
    w.BeginObject().Field("id", id).Field("type", "function").Key("function").BeginObject().Field("name", name);
    w.Field("arguments", arguments).EndObject().EndObject();
    return std::nullopt;
  }

  MaybeError TakeResult(const std::string& where, Element item) {
    std::string_view id;
    Element output;
    std::string text;
    if (item["call_id"].get_string().get(id) || item["output"].get(output))
      return BadItem(where, "needs `call_id` and `output`.");
    if (auto error = json::JoinText(output, where + ".output", kParts, text)) return error;
    Flush();
    w_.BeginObject().Field("role", "tool").Field("tool_call_id", id).Field("content", text).EndObject();
    return std::nullopt;
  }

  MaybeError TakeThoughts(const std::string& where, Element item) {
    Flush();
    for (const char* key : {"content", "summary"}) {
      Element parts;
      if (!thoughts_.empty() || item[key].get(parts) || parts.is_null()) continue;
      if (auto error = json::JoinText(parts, where + "." + key, kParts, thoughts_)) return error;
    }
    return std::nullopt;
  }

  void Flush() {
    if (has_text_ || !calls_.empty()) {
      w_.BeginObject().Field("role", "assistant").Field("content", text_);
      if (!thoughts_.empty()) w_.Field("reasoning_content", thoughts_);
      if (!calls_.empty()) w_.Key("tool_calls").Raw(StrCat("[", calls_, "]"));
      w_.EndObject();
    }
    text_.clear();
    thoughts_.clear();
    calls_.clear();
    has_text_ = false;
  }

  std::string out_, text_, thoughts_, calls_;
  JsonWriter w_{out_};
  bool has_text_ = false;
};

MaybeError WriteInput(const simdjson::dom::object& body, JsonWriter& w, ResponsesPart& part) {
  Element input;
  std::string_view text;
  simdjson::dom::array items;
  if (body["input"].get(input)) return BadRequest("`input` is required.", "input");
  ItemWriter writer;
  std::string messages;
  if (!input.get_string().get(text)) {
    JsonWriter(messages).BeginObject().Field("role", "user").Field("content", text).EndObject();
  } else if (!input.get_array().get(items)) {
    size_t number = 0;
    for (Element item : items) {
      if (auto error = writer.Take(StrCat("input[", number++, "]"), item)) return error;
    }
    messages = writer.Finish();
  } else {
    return json::WrongType("input", "a string or an array of items", input);
  }
  if (messages.empty()) return BadRequest("`input` has no message.", "input");
  part.input = json::TextOfDoubles(input);
  if (!part.instructions.empty())
    JsonWriter(part.instructions_message)
        .BeginObject()
        .Field("role", "system")
        .Field("content", part.instructions)
        .EndObject();
  w.Key("messages").Raw(StrCat("[", messages, "]"));
  return std::nullopt;
}

MaybeError WriteResponsesTools(Element tools, JsonWriter& w, CompletionRequest& given) {
  simdjson::dom::array list;
  if (tools.get_array().get(list)) return json::WrongType("tools", "an array", tools);
  if (list.size() == 0) return std::nullopt;
  given.renamed.emplace_back("].function.", "].");
  w.Key("tools").BeginArray();
  size_t number = 0;
  for (Element tool : list) {
    const std::string field = StrCat("tools[", number++, "].type");
    std::string_view type;
    if (tool["type"].get_string().get(type)) return BadRequest(StrCat("`", field, "` is required: a string."), field);
    if (type == "custom") {
      return NotBuilt(field,
                      "a custom tool, which is called with a text of any form (a function with a property of type "
                      "\"string\" is called with one, too),");
    }
    if (type != "function") {
      return NotBuilt(field,
                      StrCat("a tool of type \"", Printable(type, 40), "\", which the server would have to run,"));
    }
    w.BeginObject().Field("type", "function").Key("function").BeginObject();
    for (const char* key : {"name", "description", "parameters", "strict"}) {
      Element value;
      if (!tool[key].get(value) && !value.is_null()) w.Key(key).Raw(json::TextOf(value));
    }
    w.EndObject().EndObject();
  }
  w.EndArray();
  return std::nullopt;
}

MaybeError WriteResponsesToolChoice(Element choice, bool has_tools, JsonWriter& w) {
  std::string_view word, type = "function", name;
  Element given;
  if (!choice.get_string().get(word)) {
    if (word == "auto" && !has_tools) return std::nullopt;  // some clients always say so
    w.Key("tool_choice").Raw(json::TextOf(choice));
    return std::nullopt;
  }
  if (!choice["type"].get(given) && given.get_string().get(type)) type = "";
  if (type == "allowed_tools" || (type == "function" && !choice["function"].get(given))) {  // as a chat has them
    w.Key("tool_choice").Raw(json::TextOf(choice));
    return std::nullopt;
  }
  if (choice["name"].get_string().get(name) || type != "function") {
    return BadRequest(
        R"(`tool_choice` must be "none", "auto", "required", {"type":"function","name":…} or {"type":"allowed_tools",…}.)",
        "tool_choice");
  }
  w.Key("tool_choice").BeginObject().Field("type", "function").Key("function").BeginObject().Field("name", name);
  w.EndObject().EndObject();
  return std::nullopt;
}

/// Of what OpenAI's answers can hold beside the usual. Of most there is nothing here: no tool of the server's own runs.
MaybeError ReadInclude(Element include, JsonWriter& w) {
  constexpr std::string_view kKnown[] = {"code_interpreter_call.outputs",  "computer_call_output.output.image_url",
                                         "file_search_call.results",       "message.input_image.image_url",
                                         "message.output_text.logprobs",   "reasoning.encrypted_content",
                                         "web_search_call.action.sources", "web_search_call.results"};
  simdjson::dom::array parts;
  if (include.get_array().get(parts)) return json::WrongType("include", "an array", include);
  bool logprobs = false;
  for (Element part : parts) {
    std::string_view name;
    if (part.get_string().get(name)) return json::WrongType("include", "an array of strings", part);
    if (std::ranges::find(kKnown, name) == std::end(kKnown)) {
      std::string known;
      for (const std::string_view one : kKnown) known += StrCat(known.empty() ? "" : ", ", one);
      return BadRequest(StrCat("`include` has \"", Printable(name, 60), "\"; there are ", known, "."), "include");
    }
    logprobs = logprobs || name == "message.output_text.logprobs";
  }
  if (logprobs) w.Field("logprobs", true);
  return std::nullopt;
}

MaybeError ReadStreamOptions(Element options, CompletionRequest& given) {
  simdjson::dom::object members;
  if (options.get_object().get(members)) return json::WrongType("stream_options", "an object", options);
  for (auto [key, value] : members) {
    if (value.is_null()) continue;
    if (auto error = json::ReadOtherStreamOption(key, value, given)) return error;
  }
  return std::nullopt;
}

/// Of tools that the server runs, as OpenAI has it; there are none, so that it is kept whatever it is.
MaybeError ReadMaxToolCalls(Element value, CompletionRequest& given) {
  int32_t most = 0;
  if (auto error = json::Read("max_tool_calls", value, most)) return error;
  if (most < 1) return BadRequest(StrCat("`max_tool_calls` must be at least 1, got ", most, "."), "max_tool_calls");
  json::NoteUnknown(given, "max_tool_calls");
  return std::nullopt;
}

/// A word that changes nothing here: answers are as long as the model makes them, and nobody sums thoughts up.
MaybeError ReadWithoutEffect(std::string_view field, std::string_view member, Element in, CompletionRequest& given) {
  Element value;
  std::string word;
  if (in[member].get(value) || value.is_null()) return std::nullopt;
  if (auto error = json::Read(StrCat(field, ".", member), value, word)) return error;
  json::NoteUnknownMember(given, field, member);
  return std::nullopt;
}

/// `text.format` is a chat's response_format, with the schema's members beside its type.
MaybeError WriteText(Element text, JsonWriter& w, CompletionRequest& given) {
  Element format;
  std::string_view type;
  if (!text.is_object()) return json::WrongType("text", "an object", text);
  if (auto error = ReadWithoutEffect("text", "verbosity", text, given)) return error;
  if (text["format"].get(format) || format.is_null()) return std::nullopt;
  given.input.grammar_field = "text.format.schema";
  given.renamed.emplace_back("response_format.json_schema", "text.format");
  given.renamed.emplace_back("response_format", "text.format");
  if (format["type"].get_string().get(type) || type != "json_schema") {
    w.Key("response_format").Raw(json::TextOf(format));
    return std::nullopt;
  }
  w.Key("response_format").BeginObject().Field("type", type).Key("json_schema").BeginObject();
  for (const char* key : {"name", "description", "schema", "strict"}) {
    Element value;
    if (!format[key].get(value) && !value.is_null()) w.Key(key).Raw(json::TextOf(value));
  }
  w.EndObject().EndObject();
  return std::nullopt;
}

MaybeError WriteReasoning(Element reasoning, JsonWriter& w, CompletionRequest& given) {
  Element effort;
  if (!reasoning.is_object()) return json::WrongType("reasoning", "an object", reasoning);
  if (auto error = ReadWithoutEffect("reasoning", "summary", reasoning, given)) return error;
  if (reasoning["effort"].get(effort) || effort.is_null()) return std::nullopt;
  if (!effort.is_string()) return json::WrongType("reasoning.effort", "a string", effort);
  w.Key("reasoning_effort").Raw(json::TextOf(effort));
  return std::nullopt;
}

/// "auto" is truncate_prompt_tokens -1, as vLLM has it: the prompt's beginning goes, as far as it must.
MaybeError WriteTruncation(Element value, JsonWriter& w) {
  std::string how;
  if (auto error = json::Read("truncation", value, how)) return error;
  if (how == "auto") {
    w.Field("truncate_prompt_tokens", -1);
  } else if (how != "disabled") {
    return BadRequest(StrCat("`truncation` must be auto or disabled, got ", Printable(how, 40), "."), "truncation");
  }
  return std::nullopt;
}

MaybeError WriteResponsesField(std::string_view key, Element value, JsonWriter& w, CompletionRequest& given) {
  constexpr std::string_view kSame[] = {"user", "metadata", "service_tier"};
  const auto is_in = [&](const auto& names) { return std::ranges::find(names, key) != std::end(names); };
  ResponsesPart& part = *given.responses;
  if (key == "max_output_tokens") {
    w.Key("max_tokens").Raw(json::TextOf(value));
    given.renamed.emplace_back("max_tokens", key);
  } else if (key == "instructions") {
    return json::Read(key, value, part.instructions);
  } else if (key == "previous_response_id") {
    return json::Read(key, value, part.previous_id);
  } else if (key == "store") {
    return json::Read(key, value, part.store);
  } else if (key == "tools") {
    return WriteResponsesTools(value, w, given);
  } else if (key == "text") {
    return WriteText(value, w, given);
  } else if (key == "reasoning") {
    return WriteReasoning(value, w, given);
  } else if (key == "background") {
    bool background = false;
    if (auto error = json::Read(key, value, background)) return error;
    if (background) return NotBuilt("background", "an answer in the background");
  } else if (key == "include") {
    return ReadInclude(value, w);
  } else if (key == "stream_options") {
    return ReadStreamOptions(value, given);
  } else if (key == "max_tool_calls") {
    return ReadMaxToolCalls(value, given);
  } else if (key == "top_logprobs") {
    int64_t count = 0;
    if (!value.get_int64().get(count) && count != 0) w.Field("logprobs", true);  // a wrong one is told of itself
    w.Key(key).Raw(json::TextOf(value));
  } else if (key == "truncation") {
    return WriteTruncation(value, w);
  } else if (is_in(kSame)) {
    w.Key(key).Raw(json::TextOf(value));
  } else if (key == "conversation" || key == "prompt") {
    return NotBuilt(std::string(key), "this field");
  } else if (key != "input" && key != "tool_choice") {
    json::PassOn(key, value, w, given);
  }
  return std::nullopt;
}

/// What depends on other fields.
MaybeError WriteTogether(const simdjson::dom::object& body, JsonWriter& w, CompletionRequest& given) {
  const auto is_given = [&](const char* key, Element& e) { return !body[key].get(e) && !e.is_null(); };
  Element choice, tools, options, stream;
  simdjson::dom::array list;
  const bool has_tools = is_given("tools", tools) && !tools.get_array().get(list) && list.size() > 0;
  if (is_given("tool_choice", choice)) {
    if (auto error = WriteResponsesToolChoice(choice, has_tools, w)) return error;
  }
  bool streams = false;
  if (is_given("stream_options", options) &&
      (!is_given("stream", stream) || (!stream.get_bool().get(streams) && !streams)))
    return BadRequest("`stream_options` is only allowed with `stream: true`.", "stream_options");
  return WriteInput(body, w, *given.responses);
}

/// What the answer repeats of the request, as members of its JSON.
std::string Echo(const simdjson::dom::object& body) {
  constexpr std::pair<const char*, const char*> kRepeated[] = {{"background", "false"},
                                                               {"instructions", "null"},
                                                               {"max_output_tokens", "null"},
                                                               {"max_tool_calls", "null"},
                                                               {"metadata", "{}"},
                                                               {"parallel_tool_calls", "true"},
                                                               {"previous_response_id", "null"},
                                                               {"reasoning", "{\"effort\":null,\"summary\":null}"},
                                                               {"store", "true"},
                                                               {"temperature", "null"},
                                                               {"text", R"({"format":{"type":"text"}})"},
                                                               {"tool_choice", R"("auto")"},
                                                               {"tools", "[]"},
                                                               {"top_logprobs", "0"},
                                                               {"top_p", "null"},
                                                               {"truncation", R"("disabled")"}};
  std::string out;
  JsonWriter w(out);
  w.BeginObject();
  for (const auto& [key, otherwise] : kRepeated) {
    Element value;
    w.Key(key).Raw(body[key].get(value) || value.is_null() ? std::string(otherwise) : json::TextOf(value));
  }
  w.EndObject();
  return out.substr(1, out.size() - 2);
}

}  // namespace

std::variant<CompletionRequest, ApiError> ParseResponsesRequest(std::string_view body, const JsonLimits& limits) {
  Document document;
  if (auto error = json::Parse(body, limits, document)) return *std::move(error);
  std::string chat;
  CompletionRequest given;
  given.responses.emplace();
  JsonWriter w(chat);
  w.BeginObject();
  for (auto [key, value] : document.root) {
    if (value.is_null()) continue;
    if (auto error = WriteResponsesField(key, value, w, given)) return *std::move(error);
  }
  if (auto error = WriteTogether(document.root, w, given)) return *std::move(error);
  w.EndObject();
  given.responses->echo = Echo(document.root);
  return json::AsChat(chat, limits, Api::kResponses, std::move(given));
}

}  // namespace baton::router
