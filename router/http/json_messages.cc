// The body of Anthropic's /v1/messages as a chat: its content blocks become messages, calls and results. The chat's own
// reader does the rest.
#include <algorithm>

#include "common/foreign_text.h"
#include "router/http/json_chat.h"
#include "router/json_writer.h"

namespace baton::router {
namespace {
using json::Document;
using json::Element;
using json::MaybeError;

MaybeError BadBlock(const std::string& where, std::string_view why) {
  return BadRequest(StrCat("`", where, "` ", why), "messages");
}

constexpr std::string_view kTextBlock[] = {"text"};
constexpr json::PartKinds kBlocks = {"messages", kTextBlock};
constexpr json::PartKinds kSystemBlocks = {"system", kTextBlock};

/// One message of theirs is several of a chat's: each result of a call is one.
class MessageWriter {
 public:
  explicit MessageWriter(std::string& out) : w_(out) {}

  MaybeError Write(const std::string& where, Element message) {
    std::string_view role;
    Element content;
    if (message["role"].get_string().get(role) || (role != "user" && role != "assistant" && role != "system"))
      return BadBlock(where, "needs the `role` \"user\" or \"assistant\".");
    if (message["content"].get(content)) return BadBlock(where, "needs `content`.");
    role_ = role;
    text_.clear();
    thoughts_.clear();
    calls_.clear();
    simdjson::dom::array blocks;
    if (content.get_array().get(blocks)) {
      if (auto error = json::JoinText(content, where + ".content", kBlocks, text_)) return error;
      has_text_ = true;
      return Flush();
    }
    has_text_ = false;
    if (blocks.size() == 0 && role_ == "user") return BadBlock(where, "has an empty `content`.");
    for (Element block : blocks) {
      if (auto error = Take(where, block)) return error;
    }
    return has_text_ || !calls_.empty() || !thoughts_.empty() ? Flush() : std::nullopt;
  }

 private:
  MaybeError Take(const std::string& where, Element block) {
    std::string_view type, text;
    if (block["type"].get_string().get(type)) return BadBlock(where, "has a block without `type`.");
    if (type == "text") {
      if (block["text"].get_string().get(text)) return BadBlock(where, "has a text block without `text`.");
      if (has_text_) text_ += "\n";
      text_ += text;
      has_text_ = true;
    } else if (type == "thinking") {
      if (block["thinking"].get_string().get(text)) return BadBlock(where, "has a thinking block without `thinking`.");
      thoughts_ += text;
    } else if (type == "tool_use") {
      if (role_ != "assistant") return BadBlock(where, "has a tool_use block: only the assistant calls tools.");
      return TakeCall(where, block);
    } else if (type == "tool_result") {
      if (role_ == "assistant") return BadBlock(where, "has a tool_result block: results are the user's.");
      return TakeResult(where, block);
    } else if (type != "redacted_thinking") {
      return NotBuilt("messages", StrCat("a content block of type \"", type, "\""));
    }
    return std::nullopt;
  }

  MaybeError TakeCall(const std::string& where, Element block) {
    std::string_view id, name;
    Element input;
    if (block["id"].get_string().get(id) || block["name"].get_string().get(name))
      return BadBlock(where, "has a tool_use block without `id` or `name`.");
    const bool has_input = !block["input"].get(input);
    if (has_input && !input.is_object()) {
      return BadBlock(where,
                      StrCat("has a tool_use block whose `input` must be an object, got ", json::TypeName(input), "."));
    }
    if (!calls_.empty()) calls_ += ",";
    JsonWriter w(calls_);
    w.BeginObject().Field("id", id).Field("type", "function").Key("function").BeginObject().Field("name", name);
    w.Key("arguments").Raw(has_input ? json::TextOf(input) : "{}").EndObject().EndObject();
    return std::nullopt;
  }

  MaybeError TakeResult(const std::string& where, Element block) {
    std::string_view id;
    Element content;
    std::string text;
    if (block["tool_use_id"].get_string().get(id))
      return BadBlock(where, "has a tool_result block without `tool_use_id`.");
    if (!block["content"].get(content) && !content.is_null()) {
      if (auto error = json::JoinText(content, where + ".content", kBlocks, text)) return error;
    }
    if (has_text_) Flush();
    w_.BeginObject().Field("role", "tool").Field("tool_call_id", id).Field("content", text).EndObject();
    return std::nullopt;
  }

  MaybeError Flush() {
    w_.BeginObject().Field("role", role_).Field("content", text_);
    if (!thoughts_.empty()) w_.Field("reasoning_content", thoughts_);
    if (!calls_.empty()) w_.Key("tool_calls").Raw(StrCat("[", calls_, "]"));
    w_.EndObject();
    text_.clear();
    has_text_ = false;
    return std::nullopt;
  }

  JsonWriter w_;
  std::string role_, text_, thoughts_, calls_;
  bool has_text_ = false;
};

/// Whether the last message is the beginning of the answer, which goes on from there: text of the assistant's.
bool AnswerHasBegun(const simdjson::dom::object& body) {
  simdjson::dom::array list, blocks;
  std::string_view role, text, type;
  if (body["messages"].get_array().get(list) || list.size() == 0) return false;
  const auto last = list.at(list.size() - 1);
  if (last["role"].get_string().get(role) || role != "assistant") return false;
  if (!last["content"].get_string().get(text)) return !text.empty();
  if (last["content"].get_array().get(blocks) || blocks.size() == 0) return false;
  const bool all_said = std::ranges::all_of(blocks, [&](Element block) {
    return !block["type"].get_string().get(type) && (type == "text" || type == "thinking");
  });
  return all_said && !blocks.at(blocks.size() - 1)["text"].get_string().get(text) && !text.empty();
}

MaybeError WriteConversation(const simdjson::dom::object& body, JsonWriter& w) {
  Element system, messages;
  simdjson::dom::array list;
  if (body["messages"].get(messages)) return BadRequest("`messages` is required.", "messages");
  if (messages.get_array().get(list)) return json::WrongType("messages", "an array", messages);
  std::string out;
  if (!body["system"].get(system) && !system.is_null()) {
    std::string text;
    if (auto error = json::JoinText(system, "system", kSystemBlocks, text)) return error;
    if (!text.empty()) JsonWriter(out).BeginObject().Field("role", "system").Field("content", text).EndObject();
  }
  size_t number = 0;
  for (Element message : list) {
    std::string one;
    MessageWriter writer(one);
    if (auto error = writer.Write(StrCat("messages[", number++, "]"), message)) return error;
    if (!one.empty()) absl::StrAppend(&out, out.empty() ? "" : ",", one);
  }
  w.Key("messages").Raw(StrCat("[", out, "]"));
  Element given;
  const bool says = !body["continue_final_message"].get(given) || !body["add_generation_prompt"].get(given);
  if (!says && AnswerHasBegun(body)) w.Field("continue_final_message", true);
  return std::nullopt;
}

MaybeError WriteTools(Element tools, JsonWriter& w, CompletionRequest& given) {
  simdjson::dom::array list;
  if (tools.get_array().get(list)) return json::WrongType("tools", "an array", tools);
  if (list.size() == 0) return std::nullopt;
  given.renamed.emplace_back("].function.parameters", "].input_schema");
  given.renamed.emplace_back("].function.", "].");
  w.Key("tools").BeginArray();
  size_t number = 0;
  for (Element tool : list) {
    const std::string field = StrCat("tools[", number++, "]");
    const auto needs = [&](const char* name, const char* what) {
      return BadRequest(StrCat("`", field, ".", name, "` is required: ", what, "."), StrCat(field, ".", name));
    };
    std::string_view type, name;
    Element member;
    if (!tool["type"].get_string().get(type) && type != "custom") {
      return NotBuilt(field + ".type",
                      StrCat("a tool of type \"", Printable(type, 40), "\", which the server would have to run,"));
    }
    if (tool["name"].get_string().get(name)) return needs("name", "a string");
    if (tool["input_schema"].get(member) || member.is_null())
      return needs("input_schema", "a JSON Schema of an object");
    w.BeginObject().Field("type", "function").Key("function").BeginObject().Field("name", name);
    for (const auto& [theirs, ours] : {std::pair("description", "description"), std::pair("input_schema", "parameters"),
                                       std::pair("strict", "strict")}) {
      if (!tool[theirs].get(member) && !member.is_null()) w.Key(ours).Raw(json::TextOf(member));
    }
    w.EndObject().EndObject();
  }
  w.EndArray();
  return std::nullopt;
}

MaybeError WriteToolChoice(Element choice, JsonWriter& w) {
  std::string_view type, name;
  bool one_only = false;
  if (choice["type"].get_string().get(type)) return BadRequest("`tool_choice` needs a `type`.", "tool_choice");
  Element given;
  if (!choice["disable_parallel_tool_use"].get(given) && !given.is_null()) {
    if (auto error = json::Read("tool_choice.disable_parallel_tool_use", given, one_only)) return error;
    if (one_only) w.Field("parallel_tool_calls", false);
  }
  if (type == "auto" || type == "none") {
    w.Field("tool_choice", type);
  } else if (type == "any") {
    w.Field("tool_choice", "required");
  } else if (type == "tool" && !choice["name"].get_string().get(name)) {
    w.Key("tool_choice").BeginObject().Field("type", "function").Key("function").BeginObject().Field("name", name);
    w.EndObject().EndObject();
  } else {
    return BadRequest(R"(`tool_choice.type` must be "auto", "any", "none", or "tool" with a `name`.)", "tool_choice");
  }
  return std::nullopt;
}

MaybeError WriteThinking(Element thinking, JsonWriter& w, CompletionRequest& given) {
  std::string_view type;
  Element budget;
  if (thinking["type"].get_string().get(type)) return BadRequest("`thinking` needs a `type`.", "thinking");
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    return BadRequest(StrCat(R"(`thinking.type` must be "enabled", "disabled" or "adaptive", got ")", type, "\"."),
                      "thinking.type");
  }
  w.Key("chat_template_kwargs").BeginObject().Field("enable_thinking", type != "disabled").EndObject();
  if (type == "disabled") {
    w.Field("include_reasoning", false);
  } else {
    given.asks_thoughts = "thinking";
  }
  if (thinking["budget_tokens"].get(budget) || budget.is_null()) return std::nullopt;
  if (int64_t tokens = 0; !budget.get_int64().get(tokens) && tokens < 0) {
    return BadRequest(StrCat("`thinking.budget_tokens` must be at least 0, got ", tokens, "."),
                      "thinking.budget_tokens");
  }
  w.Key("thinking_token_budget").Raw(json::TextOf(budget));
  given.renamed.emplace_back("thinking_token_budget", "thinking.budget_tokens");
  return std::nullopt;
}

/// {"type": "json_schema", "schema": …}
MaybeError WriteOutputFormat(const char* field, Element format, JsonWriter& w, CompletionRequest& given) {
  given.input.grammar_field = StrCat(field, ".schema");
  given.renamed.emplace_back("response_format.json_schema", field);
  std::string_view type;
  Element schema;
  if (format["type"].get_string().get(type) || type != "json_schema" || format["schema"].get(schema))
    return BadRequest(StrCat("`", field, R"(` must be {"type":"json_schema","schema":{…}}.)"), field);
  w.Key("response_format").BeginObject().Field("type", "json_schema").Key("json_schema").BeginObject();
  w.Field("name", "output").Key("schema").Raw(json::TextOf(schema)).EndObject().EndObject();
  return std::nullopt;
}

MaybeError WriteOutputConfig(Element config, JsonWriter& w, CompletionRequest& given) {
  Element format, effort;
  simdjson::dom::object object;
  if (config.get_object().get(object)) return json::WrongType("output_config", "an object", config);
  if (!object["effort"].get(effort) && !effort.is_null()) {
    if (!effort.is_string()) return json::WrongType("output_config.effort", "a string", effort);
    w.Key("reasoning_effort").Raw(json::TextOf(effort));
  }
  if (object["format"].get(format) || format.is_null()) return std::nullopt;
  return WriteOutputFormat("output_config.format", format, w, given);
}

MaybeError WriteMessagesField(std::string_view key, Element value, JsonWriter& w, CompletionRequest& unknown) {
  MaybeError error;
  if (key == "metadata" || key == "service_tier") {
    json::ReadIgnoredField(key, value, error);
    return error;
  } else if (key == "stop_sequences") {
    w.Key("stop").Raw(json::TextOf(value));
    unknown.renamed.emplace_back("stop", key);
  } else if (key == "tools") {
    return WriteTools(value, w, unknown);
  } else if (key == "tool_choice") {
    return WriteToolChoice(value, w);
  } else if (key == "thinking") {
    return WriteThinking(value, w, unknown);
  } else if (key == "output_config") {
    return WriteOutputConfig(value, w, unknown);
  } else if (key == "output_format") {  // its older name
    return WriteOutputFormat("output_format", value, w, unknown);
  } else if (key != "messages" && key != "system") {
    json::PassOn(key, value, w, unknown);
  }
  return std::nullopt;
}

bool BodyHas(const simdjson::dom::object& body, const char* field) {
  Element e;
  return !body[field].get(e) && !e.is_null();
}

/// `answers`: and does not only count tokens.
std::variant<CompletionRequest, ApiError> ParseMessages(std::string_view body, const JsonLimits& limits, bool answers) {
  Document document;
  if (auto error = json::Parse(body, limits, document)) return *std::move(error);
  std::string chat;
  CompletionRequest unknown;
  JsonWriter w(chat);
  w.BeginObject();
  for (auto [key, value] : document.root) {
    if (value.is_null()) continue;
    if (auto error = WriteMessagesField(key, value, w, unknown)) return *std::move(error);
  }
  if (auto error = WriteConversation(document.root, w)) return *std::move(error);
  if (answers && !BodyHas(document.root, "max_tokens") && !BodyHas(document.root, "max_completion_tokens"))
    return BadRequest("`max_tokens` is required.", "max_tokens");
  w.EndObject();
  return json::AsChat(chat, limits, Api::kMessages, std::move(unknown));
}

}  // namespace

std::variant<CompletionRequest, ApiError> ParseMessagesRequest(std::string_view body, const JsonLimits& limits) {
  return ParseMessages(body, limits, true);
}
std::variant<CompletionRequest, ApiError> ParseCountTokensRequest(std::string_view body, const JsonLimits& limits) {
  return ParseMessages(body, limits, false);
}

}  // namespace baton::router
