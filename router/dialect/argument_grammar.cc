#include "router/dialect/argument_grammar.h"

#include <algorithm>

#include "absl/status/status.h"
#include "common/json.h"
#include "common/str_cat.h"

namespace baton::router {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kAnyObject = R"({"type":"object"})";

/// Of both forms. Texts are between quotes, in which a backslash takes the next character along.
constexpr std::string_view kAnyParts = R"(ANY_NUMBER: /-?[0-9]{1,15}(\.[0-9]{1,15})?([eE][-+]?[0-9]{1,2})?/
ANY_KEY: /[a-zA-Z_][a-zA-Z0-9_]{0,63}/
ANY_QUOTED: /"([^"\\\n]|\\[^\n])*"/
COMMA: /,[ \n]{0,2}/
COLON: /:[ \n]{0,2}/
)";
constexpr std::string_view kAnyPython =
    R"(any: any_text | ANY_NUMBER | "True" | "False" | "None" | "true" | "false" | "null" | any_list | any_object
any_list: "[" (any (COMMA any)*)? "]"
any_object: "{" (any_text COLON any (COMMA any_text COLON any)*)? "}"
any_text: ANY_QUOTED | /'([^'\\\n]|\\[^\n])*'/
any_arguments: (ANY_KEY "=" any (COMMA ANY_KEY "=" any)*)?
)";
constexpr std::string_view kAnyGemma =
    R"(any: any_text | ANY_NUMBER | "true" | "false" | "null" | any_list | any_arguments
any_list: "[" (any (COMMA any)*)? "]"
any_arguments: "{" (any_key COLON any (COMMA any_key COLON any)*)? "}"
any_key: ANY_KEY | ANY_QUOTED
any_text: ANY_QUOTED | quoted
)";

/// Whether all keywords are some of these, or say nothing about what fits.
bool HasOnly(const OrderedJson& schema, std::initializer_list<std::string_view> keywords) {
  constexpr std::string_view kNotes[] = {"title", "description", "default", "examples", "$comment", "deprecated"};
  return std::ranges::all_of(schema.items(), [&](const auto& member) {
    return std::ranges::find(keywords, member.key()) != keywords.end() ||
           std::ranges::find(kNotes, member.key()) != std::end(kNotes);
  });
}

bool IsWord(std::string_view key) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  return !key.empty() && key.find_first_not_of(kLetters) == std::string_view::npos;
}

std::string ArgumentHead(CallWriting writing, std::string_view key) {
  if (writing == CallWriting::kPython) return Quoted(StrCat(key, "="));
  return Quoted(StrCat(IsWord(key) ? std::string(key) : Quoted(key), ":"));
}

/// Of an object within the arguments.
std::string MemberHead(CallWriting writing, std::string_view key) {
  if (writing == CallWriting::kGemma) return ArgumentHead(writing, key);
  return StrCat("(", Quoted(Quoted(key)),
                key.find_first_of("'\\\n") == key.npos ? StrCat(" | ", Quoted(StrCat("'", key, "'"))) : "", ") COLON");
}

/// References to the document become references to its place in `$defs`.
void MoveReferences(OrderedJson& schema, bool& any) {
  if (schema.is_array()) {
    for (OrderedJson& one : schema) MoveReferences(one, any);
  }
  if (!schema.is_object()) return;
  for (auto& [key, value] : schema.items()) {
    if (key == "$ref" && value.is_string() && value.get_ref<std::string&>().starts_with('#')) {
      value = StrCat("#/$defs/parameters", value.get<std::string>().substr(1));
      any = true;
    } else if (key != "const" && key != "enum" && key != "default" && key != "examples") {
      MoveReferences(value, any);
    }
  }
}

bool IsScalar(const OrderedJson& value) { return value.is_primitive(); }

bool NamesOnlyProperties(const OrderedJson& schema) {
  if (!schema.contains("required")) return true;
  const OrderedJson& required = schema["required"];
  return required.is_array() && std::ranges::all_of(required, [&](const OrderedJson& name) {
           return name.is_string() && schema.contains("properties") &&
                  schema["properties"].contains(name.get<std::string>());
         });
}

absl::Status CheckTop(CallWriting writing, const OrderedJson& schema) {
  constexpr std::string_view kKnown[] = {"type",  "properties",  "required", "additionalProperties",
                                         "$defs", "definitions", "$schema"};
  const auto refuse = [](std::string_view what) {
    return absl::InvalidArgumentError(
        StrCat(what, ", which the arguments of a strict function cannot have in this model's form of calls"));
  };
  for (const auto& [key, value] : schema.items()) {
    const OrderedJson one = {{key, value}};
    if (!HasOnly(one, {}) && std::ranges::find(kKnown, key) == std::end(kKnown)) return refuse(StrCat("#/", key));
  }
  if (schema["type"] != "object") return refuse("#/type is another than \"object\"");
  if (schema.contains("properties") && !schema["properties"].is_object()) return refuse("#/properties is no object");
  if (!NamesOnlyProperties(schema)) return refuse("#/required has a name that is not one of #/properties");
  if (writing != CallWriting::kPython || !schema.contains("properties")) return absl::OkStatus();
  for (const auto& [key, value] : schema["properties"].items()) {
    if (!IsWord(key)) return refuse(StrCat("#/properties has the name ", Quoted(key)));
  }
  return absl::OkStatus();
}

}  // namespace

std::string ArgumentRules::Rule(std::string_view body) {
  const std::string name = StrCat("v_", count_++);
  rules_ += StrCat(name, ": ", body, "\n");
  return name;
}

void ArgumentRules::NeedAny() {
  if (has_any_) return;
  has_any_ = true;
  rules_ += StrCat(kAnyParts, writing_ == CallWriting::kPython ? kAnyPython : kAnyGemma);
  if (writing_ != CallWriting::kGemma) return;
  if (quote_.token) {
    rules_ += StrCat("quoted: ", quote_.Lark(), " QUOTED? ", quote_.Lark(),
                     "\nQUOTED: ", TextWithout(RegexOf(quote_.text)), "\n");
  } else {
    rules_ += StrCat("quoted: ", quote_.Lark(), " quoted_rest\nquoted_rest[lazy]: /(?s:.*)/ ", quote_.Lark(), "\n");
  }
}

absl::StatusOr<std::string> ArgumentRules::Strict(std::string_view schema) {
  if (is_json()) return Rule(StrCat("%json ", schema));
  NeedAny();
  const OrderedJson parsed = OrderedJson::parse(schema, nullptr, /*allow_exceptions=*/false);
  if (absl::Status status = CheckTop(writing_, parsed); !status.ok()) return status;
  root_ = &parsed;
  const std::string members = Members(parsed, ArgumentHead);
  root_ = nullptr;
  return writing_ == CallWriting::kPython ? members : Rule(StrCat("\"{\" ", members, " \"}\""));
}

std::string ArgumentRules::Free() {
  if (is_json()) return Rule(StrCat("%json ", kAnyObject));
  NeedAny();
  return "any_arguments";
}

std::string ArgumentRules::AsJson(const OrderedJson& schema) {
  OrderedJson moved = schema;
  bool refers = false;
  MoveReferences(moved, refers);
  if (refers) {
    OrderedJson root = *root_;
    MoveReferences(root, refers);
    moved["$defs"] = {{"parameters", root}};
    if (root.contains("$schema")) moved["$schema"] = root["$schema"];
  }
  return Rule(StrCat("%json ", moved.is_boolean() && moved.get<bool>() ? "{}" : moved.dump()));
}

std::string ArgumentRules::Value(const OrderedJson& schema) {
  if (!schema.is_object()) return AsJson(schema);
  if (HasOnly(schema, {})) return "any";
  if (HasOnly(schema, {"anyOf"}) && schema["anyOf"].is_array() && !schema["anyOf"].empty()) {
    std::string body;
    for (const OrderedJson& one : schema["anyOf"]) body += StrCat(body.empty() ? "" : " | ", Value(one));
    return Rule(body);
  }
  const OrderedJson type = schema.value("type", OrderedJson());
  if (HasOnly(schema, {"type", "enum"}) && schema.contains("enum")) return OneOf(schema);
  if (HasOnly(schema, {"const"})) return IsScalar(schema["const"]) ? Exactly(schema["const"]) : AsJson(schema);
  if (type.is_array() && !type.empty() && HasOnly(schema, {"type"})) {
    std::string body;
    for (const OrderedJson& one : type) body += StrCat(body.empty() ? "" : " | ", Value(OrderedJson{{"type", one}}));
    return Rule(body);
  }
  if (type == "string" && HasOnly(schema, {"type"})) return "any_text";
  if (type == "boolean" && HasOnly(schema, {"type"})) return Rule(StrCat(Exactly(true), " | ", Exactly(false)));
  if (type == "null" && HasOnly(schema, {"type"})) return Exactly(nullptr);
  if (type == "array" && HasOnly(schema, {"type", "items"}) && schema.contains("items")) {
    const std::string item = Value(schema["items"]);
    return Rule(StrCat("\"[\" (", item, " (COMMA ", item, ")*)? \"]\""));
  }
  if (type == "object" && HasOnly(schema, {"type", "properties", "required", "additionalProperties"}))
    return Object(schema);
  return AsJson(schema);
}

std::string ArgumentRules::OneOf(const OrderedJson& schema) {
  const OrderedJson& values = schema["enum"];
  const bool of_texts = schema.contains("type") && schema["type"] == "string";
  if (!values.is_array() || values.empty() || (schema.contains("type") && !of_texts)) return AsJson(schema);
  std::string body;
  for (const OrderedJson& one : values) {
    if (!IsScalar(one) || (of_texts && !one.is_string())) return AsJson(schema);
    body += StrCat(body.empty() ? "" : " | ", Exactly(one));
  }
  return Rule(body);
}

std::string ArgumentRules::Exactly(const OrderedJson& value) {
  const bool python = writing_ == CallWriting::kPython;
  if (!value.is_string()) {
    if (!python || value.is_number()) return Quoted(value.dump());
    return StrCat("\"", value.is_null() ? "None" : value.get<bool>() ? "True" : "False", "\"");
  }
  const std::string& text = value.get_ref<const std::string&>();
  const std::string as_json = Quoted(Quoted(text));
  if (python) {
    const bool plain = text.find_first_of("'\\\n") == std::string::npos;
    return plain ? StrCat("(", as_json, " | ", Quoted(StrCat("'", text, "'")), ")") : as_json;
  }
  if (text.find(quote_.text) != std::string::npos) return as_json;
  return StrCat("(", quote_.Lark(), " ", text.empty() ? "" : Quoted(text), " ", quote_.Lark(), ")");
}

std::string ArgumentRules::Object(const OrderedJson& schema) {
  const bool closed = !schema.contains("additionalProperties") || schema["additionalProperties"] == false;
  const bool named = schema.contains("properties") && schema["properties"].is_object() && !schema["properties"].empty();
  if (!closed || !named || !NamesOnlyProperties(schema)) return AsJson(schema);
  return Rule(StrCat("\"{\" ", Members(schema, MemberHead), " \"}\""));
}

// From the last member to the first: the rule of what may follow where no member stands yet, and where one does.
std::string ArgumentRules::Members(const OrderedJson& schema, std::string (*head)(CallWriting, std::string_view)) {
  const OrderedJson properties = schema.value("properties", OrderedJson::object());
  const OrderedJson required = schema.value("required", OrderedJson::array());
  std::vector<std::pair<std::string, bool>> members;  // Lark, and whether it must be there
  for (const auto& [key, value] : properties.items())
    members.emplace_back(StrCat(head(writing_, key), " ", Value(value)),
                         std::ranges::find(required, OrderedJson(key)) != required.end());
  std::string first = Rule("\"\""), behind = first;
  for (auto one = members.rbegin(); one != members.rend(); ++one) {
    const auto& [member, must] = *one;
    first = Rule(StrCat(member, " ", behind, must ? "" : StrCat(" | ", first)));
    behind = Rule(StrCat("COMMA ", member, " ", behind, must ? "" : StrCat(" | ", behind)));
  }
  return first;
}

}  // namespace baton::router
