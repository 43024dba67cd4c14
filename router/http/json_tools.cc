// `tools` and `tool_choice`: which function an answer must call, as a grammar of its text.
#include <algorithm>
#include <memory>

#include "router/dialect/call_reader.h"
#include "router/http/json_reader.h"
#include "router/json_writer.h"

namespace baton::router::json {
namespace {

/// Each is compared with all others.
constexpr size_t kMostTools = 1024;

MaybeError CheckToolCount(std::string_view field, size_t tools) {
  if (tools <= kMostTools) return std::nullopt;
  return BadRequest(StrCat("`", field, "` has ", tools, " functions, at most ", kMostTools, " are possible."),
                    std::string(field));
}

bool IsName(std::string_view name) {
  constexpr size_t kLongest = 128;  // Anthropic's; agents put the names of servers in front
  return !name.empty() && name.size() <= kLongest && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

// Arguments are an object, whether the schema says so or not.
std::string ArgumentsSchema(Element parameters) {
  Element type;
  std::string schema = TextOf(parameters);
  if (!parameters["type"].get(type)) return schema;
  return StrCat(R"({"type":"object")", schema.size() > 2 ? "," : "", schema.substr(1));
}

/// `member`: of tools[I].
ApiError BadMember(const std::string& member, std::string_view why) {
  return BadRequest(StrCat("`", member, "` must be ", why, "."), member);
}

MaybeError ReadTool(const std::string& field, Element e, Callable& out) {
  const std::string function = StrCat(field, ".function");
  std::string_view type = "function", name;  // as in vLLM, where it is not given
  if (const auto given = e["type"]; given.error() != simdjson::NO_SUCH_FIELD) {
    if (given.get_string().get(type) || type != "function") return BadMember(field + ".type", "\"function\"");
  }
  if (e["function"]["name"].get_string().get(name) || !IsName(name))
    return BadMember(function + ".name", "1 to 128 letters, digits, `-` and `_`");
  out.name = std::string(name);
  Element parameters, strict, description;
  if (!e["function"]["strict"].get(strict) && !strict.is_null()) {
    if (strict.get_bool().get(out.strict)) return WrongType(function + ".strict", "a boolean", strict);
  }
  if (!e["function"]["description"].get(description) && !description.is_null() && !description.is_string())
    return WrongType(function + ".description", "a string", description);
  if (e["function"]["parameters"].get(parameters) || parameters.is_null()) {
    out.schema = R"({"type":"object","properties":{},"additionalProperties":false})";
    return std::nullopt;
  }
  const std::string where = function + ".parameters";
  if (!parameters.is_object()) return WrongType(where, "a JSON Schema of an object", parameters);
  std::string_view only;
  if (!parameters["type"].get_string().get(only) && only != "object")
    return BadMember(where + ".type", StrCat("\"object\", got \"", only, "\""));
  out.schema = ArgumentsSchema(parameters);
  return std::nullopt;
}

MaybeError ReadTools(Element e, std::vector<Callable>& out) {
  simdjson::dom::array tools;
  if (e.get_array().get(tools)) return WrongType("tools", "an array", e);
  if (auto error = CheckToolCount("tools", tools.size())) return error;
  for (Element one : tools) {
    const size_t place = out.size();
    if (auto error = ReadTool(StrCat("tools[", place, "]"), one, out.emplace_back())) return error;
    out.back().place = place;
    const auto same = [&](const Callable& other) { return other.name == out.back().name; };
    if (std::ranges::count_if(out, same) > 1)
      return BadRequest(StrCat("`tools` has two functions called ", out.back().name, "."), "tools");
  }
  return std::nullopt;
}

// Lark: one rule for each call.
std::string CallGrammar(const std::vector<Callable>& tools) {
  std::string start = "start:", rules;
  for (size_t i = 0; i < tools.size(); ++i) {
    absl::StrAppend(&start, i == 0 ? " " : " | ", "call_", i);
    absl::StrAppend(&rules, "call_", i, ": ");
    AppendJsonString(ToolCallHead(tools[i].name), rules);
    absl::StrAppend(&rules, " args_", i, " \"}\"\nargs_", i, ": %json ", tools[i].schema, "\n");
  }
  return StrCat(start, "\n", rules);
}

constexpr char kChoice[] = "tool_choice";

/// What `tool_choice` says.
struct Choice {
  bool may_call = true, must_call = false;
  std::vector<std::string_view> only;  ///< of the functions; empty: any
};

/// {"mode": …, "tools": […]} of {"type": "allowed_tools"}: a chat's lie one level deeper than those of /v1/responses.
MaybeError ReadAllowedTools(Element choice, Choice& out) {
  Element inner = choice;
  if (choice["allowed_tools"].get(inner)) inner = choice;
  std::string_view mode;
  simdjson::dom::array tools;
  if (inner["mode"].get_string().get(mode) || (mode != "auto" && mode != "required"))
    return BadRequest(R"(`tool_choice.allowed_tools.mode` must be "auto" or "required".)", kChoice);
  if (inner["tools"].get_array().get(tools) || tools.size() == 0)
    return BadRequest("`tool_choice.allowed_tools.tools` must be an array of functions that is not empty.", kChoice);
  if (auto error = CheckToolCount(kChoice, tools.size())) return error;
  out.must_call = mode == "required";
  for (Element tool : tools) {
    std::string_view name;
    if (tool["function"]["name"].get_string().get(name) && tool["name"].get_string().get(name))
      return BadRequest("`tool_choice.allowed_tools.tools`: every one needs a function's `name`.", kChoice);
    out.only.push_back(name);
  }
  return std::nullopt;
}

MaybeError ReadChoice(Element choice, Choice& out) {
  std::string_view word, name;
  if (!choice.get_string().get(word)) {
    out.may_call = word != "none";
    out.must_call = word == "required";
    if (!out.may_call || out.must_call || word == "auto") return std::nullopt;
    return BadRequest(
        StrCat("`tool_choice` must be \"none\", \"auto\", \"required\" or a function, got \"", word, "\"."), kChoice);
  }
  if (!choice["type"].get_string().get(word) && word == "allowed_tools") return ReadAllowedTools(choice, out);
  if (choice["function"]["name"].get_string().get(name)) {
    return BadRequest(
        R"(`tool_choice` must be a string, {"type":"function","function":{"name":…}} or {"type":"allowed_tools",…}.)",
        kChoice);
  }
  out.must_call = true;
  out.only = {name};
  return std::nullopt;
}

/// Leaves those that `choice` allows.
MaybeError KeepOnly(const Choice& choice, std::vector<Callable>& callable) {
  if (choice.only.empty()) return std::nullopt;
  for (const std::string_view name : choice.only) {
    if (std::ranges::find(callable, name, &Callable::name) == callable.end())
      return BadRequest(StrCat("`tool_choice` names ", name, ", which is not among `tools`."), kChoice);
  }
  std::erase_if(callable, [&](const Callable& tool) {
    return std::ranges::find(choice.only, std::string_view(tool.name)) == choice.only.end();
  });
  return std::nullopt;
}

}  // namespace

MaybeError TakeTools(Element tools, std::optional<Element> choice, CompletionRequest& r) {
  Choice chosen;
  if (choice) {
    if (auto error = ReadChoice(*choice, chosen)) return error;
  }
  if (!chosen.may_call) return std::nullopt;
  std::vector<Callable> callable;
  if (auto error = ReadTools(tools, callable)) return error;
  if (auto error = KeepOnly(chosen, callable)) return error;
  r.callable = std::move(callable);
  r.must_call = chosen.must_call;
  if (!r.must_call) return std::nullopt;
  if (r.input.sampling.grammar) {
    return BadRequest(StrCat("`tool_choice` and `", r.input.grammar_field, "` both say what the answer must fit."),
                      kChoice);
  }
  r.input.sampling.grammar = std::make_shared<const Grammar>(Grammar{GrammarKind::kLark, CallGrammar(r.callable)});
  r.input.grammar_field = "tools";
  for (const Callable& one : r.callable) r.input.grammar_parts.push_back(SchemaOf(one));
  return std::nullopt;
}

}  // namespace baton::router::json
