// The arguments of a call as Qwen writes them: `<parameter=NAME>VALUE</parameter>` for each, in the schema's order.
// Texts stand there as they are, everything else as JSON.
#include <algorithm>
#include <initializer_list>
#include <set>

#include "router/http/json_format_writer.h"
#include "text/grammar_form.h"

namespace baton::router::json {
namespace {

constexpr std::string_view kEnd = R"("</parameter>")";
constexpr std::string_view kNotes[] = {"title", "description", "default", "examples", "$comment", "deprecated"};

/// The first keyword that is none of these and says something about what fits; empty: none.
std::string_view OtherKeyword(Element schema, std::initializer_list<std::string_view> known) {
  simdjson::dom::object members;
  if (schema.get_object().get(members)) return {};
  for (const auto& [key, value] : members) {
    if (std::ranges::find(known, key) == known.end() && std::ranges::find(kNotes, key) == std::end(kNotes)) return key;
  }
  return {};
}

bool HasType(Element schema, std::string_view type) {
  std::string_view name;
  return !schema["type"].get_string().get(name) && name == type;
}

/// Any text fits it.
bool TakesAnyText(Element schema) {
  simdjson::dom::array some;
  if (!schema.is_object()) return schema.is_bool() && schema.get_bool().value_unsafe();
  if (OtherKeyword(schema, {}).empty()) return true;
  if (OtherKeyword(schema, {"type"}).empty()) {
    if (HasType(schema, "string")) return true;
    if (schema["type"].get_array().get(some)) return false;
    return std::any_of(some.begin(), some.end(), [](Element one) {
      std::string_view name;
      return !one.get_string().get(name) && name == "string";
    });
  }
  if (!OtherKeyword(schema, {"anyOf"}).empty() || schema["anyOf"].get_array().get(some)) return false;
  return std::any_of(some.begin(), some.end(), [](Element one) { return one.is_object() && TakesAnyText(one); });
}

/// The texts that a schema lists, where it lists nothing else.
std::vector<std::string_view> ListedTexts(Element schema) {
  std::vector<std::string_view> out;
  simdjson::dom::array values;
  Element one;
  if (!schema.is_object() || !OtherKeyword(schema, {"type", "enum", "const"}).empty()) return out;
  if (!schema["const"].get(one)) {
    if (one.get_string().get(out.emplace_back())) out.clear();
  } else if (!schema["enum"].get_array().get(values)) {
    for (Element value : values) {
      if (value.get_string().get(out.emplace_back())) return {};
    }
  }
  return out;
}

/// A reference within `value` that leads anywhere but to a definition; empty: there is none. `any`: there are others.
std::string_view StrayReference(Element value, bool& any) {
  simdjson::dom::object members;
  simdjson::dom::array items;
  std::string_view stray;
  if (!value.get_object().get(members)) {
    for (const auto& [key, member] : members) {
      std::string_view to;
      if (key == "$ref" && !member.get_string().get(to)) {
        any = true;
        if (!to.starts_with("#/$defs/") && !to.starts_with("#/definitions/")) return to;
      }
      if (stray = StrayReference(member, any); !stray.empty()) return stray;
    }
  } else if (!value.get_array().get(items)) {
    for (Element item : items) {
      if (stray = StrayReference(item, any); !stray.empty()) return stray;
    }
  }
  return {};
}

std::string SpaceExpression() { return StrCat("/", JsonSpace(), "/"); }

}  // namespace

/// With the tag that ends it. `root`: where definitions stand.
MaybeError FormatWriter::WriteXmlValue(Element schema, const std::string& path, Element root, std::string& out) {
  if (!schema.is_object() && !schema.is_bool()) return MustBe(path, "a JSON Schema");
  if (rules_.size() >= kEnough) return std::nullopt;  // definitions stand in each value that refers to them
  if (TakesAnyText(schema)) {
    out = Define("text", StrCat("/(?s:.*)/ ", kEnd), true);
    return std::nullopt;
  }
  if (const auto texts = ListedTexts(schema); !texts.empty()) {
    std::string any;
    for (std::string_view text : texts) absl::StrAppend(&any, any.empty() ? "" : " | ", QuotedText(text));
    out = Define("TEXT", StrCat("(", any, ") ", kEnd));
    return std::nullopt;
  }
  if (schema.is_object() && HasType(schema, "string")) {
    if (const auto other = OtherKeyword(schema, {"type", "minLength", "maxLength"}); !other.empty())
      return NotBuilt(StrCat(path, ".", other), "this keyword of a text without quotes");
    int64_t least = 0, most = -1;
    if (Element e; !schema["minLength"].get(e) && (e.get_int64().get(least) || least < 0))
      return MustBe(StrCat(path, ".minLength"), "a whole number");
    if (Element e; !schema["maxLength"].get(e) && (e.get_int64().get(most) || most < 0))
      return MustBe(StrCat(path, ".maxLength"), "a whole number");
    out = Define("TEXT", StrCat("(/(?s:.{", least, ",", most < 0 ? "" : StrCat(most), "})/ & ~(/(?s:.*)/ ", kEnd,
                                " /(?s:.*)/)) ", kEnd));
    return std::nullopt;
  }
  bool refers = false;
  if (const auto stray = StrayReference(schema, refers); !stray.empty())
    return NotBuilt(path, StrCat("the reference ", stray, " (only those to #/$defs and #/definitions)"));
  std::string text = TextOf(schema);
  for (const char* name : {"$defs", "definitions"}) {
    Element definitions, own;
    if (!refers || root[name].get(definitions)) continue;
    if (!schema[name].get(own)) return NotBuilt(StrCat(path, ".", name), "definitions within a parameter");
    text.pop_back();
    absl::StrAppend(&text, text == "{" ? "" : ",", QuotedText(name), ":", TextOf(definitions), "}");
  }
  const std::string space = Define("SPACE", SpaceExpression());
  out = StrCat(space, "? ", Item(Schema(text)), " ", space, "? ", kEnd);
  return std::nullopt;
}

MaybeError FormatWriter::WriteXmlParameters(Element format, const std::string& path, Part& out) {
  const std::string at = StrCat(path, ".json_schema");
  Element schema, e;
  simdjson::dom::object properties;
  std::vector<std::string_view> required;
  if (format["json_schema"].get(schema) || !schema.is_object()) return MustBe(at, "the JSON Schema of an object");
  if (const auto other = OtherKeyword(
          schema, {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema"});
      !other.empty())
    return NotBuilt(StrCat(at, ".", other), "this keyword");
  if (!schema["type"].get(e) && !HasType(schema, "object")) return MustBe(StrCat(at, ".type"), "\"object\"");
  if (!schema["properties"].get(e) && e.get_object().get(properties))
    return MustBe(StrCat(at, ".properties"), "an object");
  const bool has_properties = !schema["properties"].get(e);
  if (!schema["required"].get(e)) {
    simdjson::dom::array names;
    if (e.get_array().get(names)) return MustBe(StrCat(at, ".required"), "an array of strings");
    for (Element name : names) {
      if (name.get_string().get(required.emplace_back()) || !has_properties)
        return MustBe(StrCat(at, ".required"), "an array of names of properties");
    }
    std::ranges::sort(required);
    std::vector<std::string_view> there;
    if (has_properties) {
      for (const auto& [key, value] : properties) there.push_back(key);
    }
    std::ranges::sort(there);
    if (!std::ranges::includes(there, std::set<std::string_view>(required.begin(), required.end())))
      return MustBe(StrCat(at, ".required"), "an array of names of properties");
  }
  const std::string space = Define("SPACE", SpaceExpression());
  std::string lark = StrCat(space, "?");
  if (has_properties) {
    for (const auto& [key, value] : properties) {
      std::string inside;
      if (auto error = WriteXmlValue(value, StrCat(at, ".properties.", key), schema, inside)) return error;
      const bool must = std::ranges::binary_search(required, key);
      absl::StrAppend(&lark, " (", QuotedText(StrCat("<parameter=", key, ">")), " ", inside, " ", space, "?)",
                      must ? "" : "?");
    }
  }
  out = {Define("rule", lark), false};
  return std::nullopt;
}

}  // namespace baton::router::json
