// The bodies of Ollama's /api/chat and /api/generate as a chat, or as a text where `raw` asks for no template. Its
// `options` are fields beside the others here.

#include "router/http/json_chat.h"
#include "router/json_writer.h"

namespace baton::router {
namespace {
using json::Document;
using json::Element;
using json::MaybeError;

/// What of a body is no field of a chat.
struct Prompting {
  std::string_view prompt, system;
  std::optional<Element> messages;
  bool raw = false, stream = true, logprobs = false;
  bool unload = false;  ///< the model is to go as soon as it has answered
  int32_t top_logprobs = 0;
};

/// Clients add a tag to a name that has none.
std::string WithoutTag(std::string model) {
  constexpr std::string_view kLatest = ":latest";
  if (model.ends_with(kLatest)) model.resize(model.size() - kLatest.size());
  return model;
}

/// Whether a `keep_alive` is no time at all: 0, "0", "0s".
bool IsNoTime(Element keep_alive) {
  std::string_view text;
  double seconds = 1;
  if (!keep_alive.get_string().get(text)) return !text.empty() && text.find_first_not_of("0.hms") == text.npos;
  return !keep_alive.get_double().get(seconds) && seconds == 0;
}

MaybeError WriteOptions(Element options, JsonWriter& w, CompletionRequest& given) {
  simdjson::dom::object object;
  if (options.get_object().get(object)) return json::WrongType("options", "an object", options);
  for (auto [key, value] : object) {
    if (value.is_null()) continue;
    const std::string text = json::TextOf(value);
    int64_t count = 0;
    if (key == "repeat_penalty") {
      w.Key("repetition_penalty").Raw(text);
      given.renamed.emplace_back("repetition_penalty", key);
    } else if (key == "num_predict") {
      if (value.get_int64().get(count) || count > 0) w.Key("max_tokens").Raw(text);  // else as many as fit
      given.renamed.emplace_back("max_tokens", "num_predict");
    } else if (json::IsFieldOfAnyApi(key)) {
      w.Key(key).Raw(text);
    } else {
      json::NoteUnknownMember(given, "options", key);
    }
  }
  return std::nullopt;
}

MaybeError WriteOllamaFormat(Element format, JsonWriter& w) {
  std::string_view word;
  if (!format.get_string().get(word)) {
    if (word.empty()) return std::nullopt;
    if (word != "json") return BadRequest("`format` must be \"json\" or a JSON Schema.", "format");
    w.Key("response_format").Raw(R"({"type":"json_object"})");
    return std::nullopt;
  }
  if (!format.is_object()) return json::WrongType("format", "\"json\" or a JSON Schema", format);
  w.Key("response_format").BeginObject().Field("type", "json_schema").Key("json_schema").BeginObject();
  w.Field("name", "format").Key("schema").Raw(json::TextOf(format)).EndObject().EndObject();
  return std::nullopt;
}

MaybeError WriteThink(Element think, JsonWriter& w, CompletionRequest& given) {
  bool on = true;
  std::string_view effort;
  if (!think.get_string().get(effort)) {
    w.Field("reasoning_effort", effort);
  } else if (think.get_bool().get(on)) {
    return json::WrongType("think", "a boolean, or a string that says how much", think);
  }
  w.Key("chat_template_kwargs").BeginObject().Field("enable_thinking", on).EndObject();
  if (on) {
    given.asks_thoughts = "think";
  } else {
    w.Field("include_reasoning", false);
  }
  return std::nullopt;
}

MaybeError NoImages(Element images) {
  simdjson::dom::array list;
  if (images.get_array().get(list)) return json::WrongType("images", "an array", images);
  if (list.size() > 0) return NotBuilt("images", "looking at images");
  return std::nullopt;
}

MaybeError WriteOllamaField(std::string_view key, Element value, JsonWriter& w, Prompting& p,
                            CompletionRequest& given) {
  if (key == "model") {
    std::string model;
    if (auto error = json::Read(key, value, model)) return error;
    w.Field("model", WithoutTag(std::move(model)));
  } else if (key == "messages") {
    p.messages = value;
  } else if (key == "prompt" || key == "system") {
    if (value.get_string().get(key == "prompt" ? p.prompt : p.system)) return json::WrongType(key, "a string", value);
  } else if (key == "raw") {
    return json::Read(key, value, p.raw);
  } else if (key == "stream") {
    return json::Read(key, value, p.stream);
  } else if (key == "options") {
    return WriteOptions(value, w, given);
  } else if (key == "format") {
    given.input.grammar_field = key;
    for (const char* ours : {"response_format.json_schema.schema", "response_format"})
      given.renamed.emplace_back(ours, key);
    return WriteOllamaFormat(value, w);
  } else if (key == "logprobs") {
    return json::Read(key, value, p.logprobs);
  } else if (key == "top_logprobs") {
    return json::Read(key, value, p.top_logprobs);
  } else if (key == "think") {
    return WriteThink(value, w, given);
  } else if (key == "images") {
    return NoImages(value);
  } else if (key == "suffix" || key == "template") {
    std::string_view text;
    if (value.get_string().get(text) || !text.empty()) return NotBuilt(std::string(key), "this field");
  } else if (key == "tools") {
    simdjson::dom::array list;
    if (value.get_array().get(list) || list.size() > 0) w.Key(key).Raw(json::TextOf(value));
  } else if (key == "keep_alive") {
    p.unload = IsNoTime(value);
    given.unknown_fields.emplace_back(key);  // a model stays as long as its worker does
  } else {
    json::PassOn(key, value, w, given);
  }
  return std::nullopt;
}

void WriteCalls(Element calls, size_t message, JsonWriter& w) {
  simdjson::dom::array list;
  w.Key("tool_calls");
  if (calls.get_array().get(list)) return void(w.Raw(json::TextOf(calls)));  // the chat's reader says what is wrong
  w.BeginArray();
  size_t number = 0;
  for (Element call : list) {
    Element function;
    std::string_view id;
    w.BeginObject().Field("id",
                          call["id"].get_string().get(id) ? StrCat("call_", message, "_", number) : std::string(id));
    w.Field("type", "function").Key("function");
    w.Raw(call["function"].get(function) ? "{}" : json::TextOf(function)).EndObject();
    ++number;
  }
  w.EndArray();
}

MaybeError WriteMessage(Element message, size_t number, JsonWriter& w) {
  simdjson::dom::object members;
  if (message.get_object().get(members)) return json::WrongType(StrCat("messages[", number, "]"), "an object", message);
  w.BeginObject();
  for (auto [key, value] : members) {
    if (value.is_null()) continue;
    if (key == "images") {
      if (auto error = NoImages(value)) return error;
    } else if (key == "thinking") {
      w.Key("reasoning_content").Raw(json::TextOf(value));
    } else if (key == "tool_calls") {
      WriteCalls(value, number, w);
    } else {
      w.Key(key == "tool_name" ? "name" : key).Raw(json::TextOf(value));
    }
  }
  w.EndObject();
  return std::nullopt;
}

MaybeError WriteOllamaMessages(Element messages, JsonWriter& w) {
  simdjson::dom::array list;
  if (messages.get_array().get(list)) return json::WrongType("messages", "an array", messages);
  w.Key("messages").BeginArray();
  size_t number = 0;
  for (Element message : list) {
    if (auto error = WriteMessage(message, number++, w)) return error;
  }
  w.EndArray();
  return std::nullopt;
}

/// Whether the last message is the beginning of the answer.
bool OllamaHasBegun(Element messages) {
  simdjson::dom::array list;
  std::string_view role, content;
  if (messages.get_array().get(list) || list.size() == 0) return false;
  const auto last = list.at(list.size() - 1);
  return !last["role"].get_string().get(role) && role == "assistant" && !last["content"].get_string().get(content) &&
         !content.empty() && last["tool_calls"].error() != simdjson::SUCCESS;
}

/// Asked nothing: the model is to be loaded, or to go. Null: there is something to answer.
const char* LoadOnly(const Prompting& p, Api api) {
  simdjson::dom::array messages;
  const bool asks = api == Api::kOllamaChat
                        ? p.messages && (p.messages->get_array().get(messages) || messages.size() > 0)
                        : !p.prompt.empty();
  if (asks) return nullptr;
  return p.unload ? "unload" : "load";
}

std::variant<CompletionRequest, ApiError> ParseOllama(std::string_view body, const JsonLimits& limits, Api api) {
  Document document;
  if (auto error = json::Parse(body, limits, document)) return *std::move(error);
  std::string chat;
  CompletionRequest given;
  Prompting p;
  JsonWriter w(chat);
  w.BeginObject();
  for (auto [key, value] : document.root) {
    if (value.is_null()) continue;
    if (auto error = WriteOllamaField(key, value, w, p, given)) return *std::move(error);
  }
  if (const char* loads = LoadOnly(p, api)) {
    Element model;
    if (!document.root["model"].get(model) && !model.is_null()) {
      if (auto error = json::Read("model", model, given.input.model)) return *std::move(error);
    }
    given.input.model = WithoutTag(std::move(given.input.model));
    given.api = api;
    given.loads = loads;
    return given;
  }
  if (p.top_logprobs != 0 && !p.logprobs) return BadRequest("`top_logprobs` needs `logprobs: true`.", "top_logprobs");
  w.Field("stream", p.stream);
  if (p.raw && api == Api::kOllamaGenerate) {
    if (!p.system.empty()) json::NoteUnknown(given, "system");
    if (p.logprobs) w.Field("logprobs", p.top_logprobs);
    given.renamed.emplace_back("logprobs", "top_logprobs");
    w.Field("prompt", p.prompt).Field("add_special_tokens", false).EndObject();
    return json::AsText(chat, limits, api, std::move(given));
  }
  if (p.logprobs) w.Field("logprobs", true).Field("top_logprobs", p.top_logprobs);
  if (api == Api::kOllamaChat) {
    if (auto error = WriteOllamaMessages(*p.messages, w)) return *std::move(error);
    if (OllamaHasBegun(*p.messages)) w.Field("continue_final_message", true);
  } else {
    w.Key("messages").BeginArray();
    if (!p.system.empty()) w.BeginObject().Field("role", "system").Field("content", p.system).EndObject();
    w.BeginObject().Field("role", "user").Field("content", p.prompt).EndObject().EndArray();
  }
  w.EndObject();
  return json::AsChat(chat, limits, api, std::move(given));
}

}  // namespace

std::variant<std::string, ApiError> ParseShowRequest(std::string_view body, const JsonLimits& limits) {
  Document document;
  if (auto error = json::Parse(body, limits, document)) return *std::move(error);
  std::string model;
  for (const char* key : {"name", "model"}) {
    Element e;
    if (document.root[key].get(e) || e.is_null()) continue;
    if (auto error = json::Read(key, e, model)) return *std::move(error);
  }
  if (model.empty()) return BadRequest("`model` is required.", "model");
  return WithoutTag(std::move(model));
}

std::variant<CompletionRequest, ApiError> ParseOllamaChat(std::string_view body, const JsonLimits& limits) {
  return ParseOllama(body, limits, Api::kOllamaChat);
}
std::variant<CompletionRequest, ApiError> ParseOllamaGenerate(std::string_view body, const JsonLimits& limits) {
  return ParseOllama(body, limits, Api::kOllamaGenerate);
}

}  // namespace baton::router
