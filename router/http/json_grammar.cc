// The fields that say what an answer must fit: OpenAI's response_format, vLLM's structured_outputs and its guided_*.
// All are one Grammar; whether it compiles is asked later (router/request/grammar_check.h).
#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "router/http/json_reader.h"
#include "router/json_writer.h"
#include "text/grammar_form.h"

namespace baton::router::json {
namespace {

constexpr char kAnyObject[] = R"({"type":"object"})";
constexpr std::string_view kGuidedSpace = "guided_whitespace_pattern";

MaybeError Take(std::string_view field, GrammarKind kind, std::string text, CompletionRequest& r) {
  if (r.input.sampling.grammar) {
    return BadRequest(StrCat("`", field, "` and `", r.input.grammar_field, "` both say what the answer must fit."),
                      std::string(field));
  }
  r.input.sampling.grammar = std::make_shared<const Grammar>(Grammar{kind, std::move(text)});
  r.input.grammar_field = field;
  return std::nullopt;
}

/// A schema is an object (or true, or false), or text that holds one.
MaybeError TakeSchema(std::string_view field, Element e, CompletionRequest& r) {
  std::string_view text;
  if (!e.get_string().get(text)) return Take(field, GrammarKind::kJsonSchema, std::string(text), r);
  if (!e.is_object() && !e.is_bool()) return WrongType(field, "a JSON Schema", e);
  return Take(field, GrammarKind::kJsonSchema, TextOf(e), r);
}

MaybeError TakeText(std::string_view field, GrammarKind kind, Element e, CompletionRequest& r) {
  std::string text;
  if (auto error = Read(field, e, text)) return error;
  if (text.empty()) return BadRequest(StrCat("`", field, "` is an empty string."), std::string(field));
  return Take(field, kind, std::move(text), r);
}

MaybeError TakeChoices(std::string_view field, Element e, CompletionRequest& r) {
  simdjson::dom::array choices;
  if (e.get_array().get(choices)) return WrongType(field, "an array of strings", e);
  for (Element choice : choices) {
    if (!choice.is_string()) return WrongType(field, "an array of strings", choice);
  }
  return Take(field, GrammarKind::kChoice, TextOf(e), r);
}

/// A structural tag is an object, or its text.
MaybeError TakeStructuralTag(std::string_view field, Element e, CompletionRequest& r) {
  std::string_view text;
  Document inner;
  if (!e.get_string().get(text)) {
    if (!ParseInner(text, inner)) return BadRequest(StrCat("`", field, "` is not JSON."), std::string(field));
    e = inner.whole;
  }
  if (!e.is_object()) return WrongType(field, "an object", e);
  std::string lark;
  std::vector<TokenRule> tokens;
  if (auto error = StructuralTagGrammar(std::string(field), e, lark, tokens)) return error;
  if (auto error = Take(field, GrammarKind::kLark, std::move(lark), r)) return error;
  r.input.token_rules = std::move(tokens);
  return std::nullopt;
}

/// A field of vLLM's, by its name without `guided_`. False: there is none of this name.
bool TakeGuide(std::string_view field, std::string_view guide, Element e, CompletionRequest& r, MaybeError& error) {
  if (guide == "json") {
    error = TakeSchema(field, e, r);
  } else if (guide == "regex") {
    error = TakeText(field, GrammarKind::kRegex, e, r);
  } else if (guide == "choice") {
    error = TakeChoices(field, e, r);
  } else if (guide == "grammar") {
    error = TakeText(field, GrammarKind::kLark, e, r);
  } else if (guide == "json_object") {
    bool wanted = false;
    error = Read(field, e, wanted);
    if (!error && wanted) error = Take(field, GrammarKind::kJsonSchema, kAnyObject, r);
  } else {
    return false;
  }
  return true;
}

/// Gives a schema of `field` (empty: of any) what `option` says of the white space between the parts of its JSON.
MaybeError GiveSpace(std::string_view field, const std::string& option, std::string_view says, CompletionRequest& r) {
  const auto& grammar = r.input.sampling.grammar;
  const std::string_view text = grammar ? std::string_view(grammar->text) : "";
  constexpr std::string_view kWhite = " \t\r\n";
  const bool any = text == "true";
  const size_t open = text.find_first_not_of(kWhite), inside = any ? 0 : text.find_first_not_of(kWhite, open + 1);
  if (!grammar || grammar->kind != GrammarKind::kJsonSchema || !r.input.grammar_field.starts_with(field))
    return NotBuilt(option, "this field, but with a JSON Schema beside it,");
  if (!any && (open == text.npos || text[open] != '{' || inside == text.npos)) return std::nullopt;  // no schema
  const std::string_view rest = any ? "}" : text.substr(inside);
  const bool empty = rest.front() == '}';
  const std::string own = StrCat(R"({"x-guidance":{)", says, "}");
  r.input.sampling.grammar =
      std::make_shared<const Grammar>(Grammar{grammar->kind, StrCat(own, empty ? "" : ",", rest)});
  return std::nullopt;
}

MaybeError GivePattern(std::string_view field, const std::string& option, const std::string& pattern,
                       CompletionRequest& r) {
  if (const absl::Status status = CheckJsonSpace(pattern); !status.ok())
    return BadRequest(StrCat("`", option, "`: ", status.message(), "."), option);
  std::string says = R"("whitespace_pattern":)";
  AppendJsonString(pattern, says);
  return GiveSpace(field, option, says, r);
}

MaybeError ReadStructuredOutputs(std::string_view field, Element e, CompletionRequest& r) {
  simdjson::dom::object object;
  bool compact = false;
  std::optional<std::string> pattern;
  if (e.get_object().get(object)) return WrongType(field, "an object", e);
  constexpr std::string_view kGuides[] = {"json", "regex", "choice", "grammar", "json_object"};
  constexpr std::string_view kCompact = "disable_any_whitespace", kPattern = "whitespace_pattern";
  constexpr std::string_view kOptions[] = {kCompact, "disable_additional_properties"};
  for (auto [key, value] : object) {
    const auto is_one_of = [key = key](const auto& names) {
      return std::find(std::begin(names), std::end(names), key) != std::end(names);
    };
    const std::string name = StrCat(field, ".", key);
    MaybeError error;
    bool on = false;
    if (key == "structural_tag") {
      if (!value.is_null()) error = TakeStructuralTag(name, value, r);
    } else if (is_one_of(kGuides)) {
      if (!value.is_null()) TakeGuide(name, key, value, r, error);
    } else if (is_one_of(kOptions) || key == "disable_fallback") {
      if (!value.is_null()) error = Read(name, value, on);
      compact = compact || (on && key == kCompact);
      if (!error && on && key == kOptions[1]) error = NotBuilt(name, "this field");  // and there is no fallback
    } else if (key == kPattern) {
      if (!value.is_null()) error = Read(name, value, pattern);
    } else if (bool set = true; !value.is_null() && (value.get_bool().get(set) || set)) {
      error = NotBuilt(name, "this field");  // one that is off asks for nothing
    }
    if (error) return error;
  }
  const std::string option = StrCat(field, ".", pattern ? kPattern : kCompact);
  if (compact && pattern)
    return BadRequest(StrCat("`", option, "` and `", field, ".", kCompact, "` both say what white space JSON has."),
                      option);
  if (pattern) return GivePattern(field, option, *pattern, r);
  return compact ? GiveSpace(field, option, R"("whitespace_flexible":false)", r) : std::nullopt;
}

/// Leaves `out` as it is where the member is not there, or null.
template <class T>
MaybeError ReadMember(std::string_view field, Element object, std::string_view name, T& out) {
  Element e;
  if (object[name].get(e) || e.is_null()) return std::nullopt;
  return Read(StrCat(field, ".", name), e, out);
}

MaybeError ReadJsonSchemaFormat(Element format, CompletionRequest& r) {
  constexpr char kField[] = "response_format.json_schema";
  Element e, schema;
  if (format["json_schema"].get(e) || !e.is_object())
    return BadRequest(StrCat("`", kField, "` must be an object with `schema`."), kField);
  const std::string name = StrCat(kField, ".schema");
  if (e["schema"].get(schema) || schema.is_null()) return BadRequest(StrCat("`", name, "` is required."), name);
  bool strict = false;  // an answer fits the schema either way
  std::string text;
  if (auto error = ReadMember(kField, e, "strict", strict)) return error;
  if (auto error = ReadMember(kField, e, "name", text)) return error;
  if (auto error = ReadMember(kField, e, "description", text)) return error;
  if (schema.is_string()) return WrongType(name, "a JSON Schema", schema);
  return TakeSchema(name, schema, r);
}

MaybeError ReadResponseFormat(std::string_view field, Element e, CompletionRequest& r) {
  if (!e.is_object()) return WrongType(field, "an object", e);
  std::string_view type;
  const std::string name = StrCat(field, ".type");
  if (e["type"].get_string().get(type)) return BadRequest(StrCat("`", name, "` must be a string."), name);
  if (type == "text") return std::nullopt;
  if (type == "json_object") {
    Element schema;  // llama.cpp's: which object
    if (e["schema"].get(schema) || schema.is_null()) return Take(field, GrammarKind::kJsonSchema, kAnyObject, r);
    if (!schema.is_object()) return WrongType(StrCat(field, ".schema"), "a JSON Schema", schema);
    return TakeSchema(StrCat(field, ".schema"), schema, r);
  }
  if (type == "json_schema") return ReadJsonSchemaFormat(e, r);
  if (type == "structural_tag") return TakeStructuralTag(field, e, r);
  return BadRequest(StrCat("`", name, "` must be \"text\", \"json_object\" or \"json_schema\", got \"", type, "\"."),
                    name);
}

}  // namespace

bool ReadGrammarField(std::string_view key, Element e, CompletionRequest& out, MaybeError& error) {
  constexpr std::string_view kGuided = "guided_";
  if (key == "response_format") {
    error = ReadResponseFormat(key, e, out);
  } else if (key == "structured_outputs") {
    error = ReadStructuredOutputs(key, e, out);
  } else if (key == kGuidedSpace) {
    error = Read(key, e, out.json_space);
  } else if (key.starts_with(kGuided)) {
    return TakeGuide(key, key.substr(kGuided.size()), e, out, error);
  } else {
    return false;
  }
  return true;
}

MaybeError FinishGrammar(CompletionRequest& r) {
  if (!r.json_space) return std::nullopt;
  return GivePattern("", std::string(kGuidedSpace), *r.json_space, r);
}

}  // namespace baton::router::json
