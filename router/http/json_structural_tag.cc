// vLLM's structural tags, both its forms, as Lark. Text up to a trigger, or up to an end, is one lazy terminal, so that
// no text goes on behind it as if it were none. What is regular becomes one terminal together with its neighbours:
// between two terminals the longer match wins, which would leave no text for what comes behind `[a-z]+`.
#include <algorithm>

#include "absl/strings/str_replace.h"
#include "router/http/json_format_writer.h"
#include "text/grammar_form.h"

namespace baton::router::json {
namespace {

constexpr int64_t kMaxRepeats = 10'000;

std::string RegexLiteral(std::string_view pattern) {
  return StrCat(
      "/", absl::StrReplaceAll(std::string(pattern), {{"\\\\", "\\\\"}, {"\\/", "\\/"}, {"/", "\\/"}, {"\n", "\\n"}}),
      "/");
}

MaybeError ReadText(Element of, std::string_view name, const std::string& path, std::string_view& out) {
  if (of[name].get_string().get(out) || out.empty())
    return MustBe(StrCat(path, ".", name), "a string that is not empty");
  return std::nullopt;
}

}  // namespace

MaybeError ReadTexts(Element list, const std::string& path, std::vector<std::string_view>& out) {
  simdjson::dom::array texts;
  if (list.get_array().get(texts)) return MustBe(path, "an array of strings");
  for (Element one : texts) {
    if (one.get_string().get(out.emplace_back()) || out.back().empty()) return MustBe(path, "an array of strings");
  }
  return std::nullopt;
}

/// Lark for text in which none of the strings of `excludes` stands. `any`: of at least one character, or none. A name,
/// where there are such strings: what is read may stand in a rule of each trigger.
MaybeError FormatWriter::ReadFreeText(Element of, const std::string& path, std::string_view any, std::string& out) {
  Element list;
  std::vector<std::string_view> excludes;
  if (!of["excludes"].get(list) && !list.is_null()) {
    if (auto error = ReadTexts(list, StrCat(path, ".excludes"), excludes)) return error;
  }
  out = any;
  if (excludes.empty()) return std::nullopt;
  std::string some;
  for (std::string_view text : excludes) absl::StrAppend(&some, some.empty() ? "" : " | ", QuotedText(text));
  out = Define("FREE", StrCat("(", any, " & ~(/(?s:.*)/ (", some, ") /(?s:.*)/))"));
  return std::nullopt;
}

Part FormatWriter::Joined(const std::vector<Part>& parts) {
  const bool regular = std::all_of(parts.begin(), parts.end(), [](const Part& part) { return part.regular; });
  std::string lark, text;
  for (const Part& part : parts) {
    if (part.lark.empty()) continue;
    if (part.regular) {
      absl::StrAppend(&text, text.empty() ? "" : " ", "(", part.lark, ")");
      continue;
    }
    if (!text.empty()) absl::StrAppend(&lark, Define("TEXT", text), " ");
    text.clear();
    absl::StrAppend(&lark, "(", part.lark, ") ");
  }
  // By name: brackets in brackets are soon too deep for a grammar.
  if (regular) return {text.empty() ? text : Define("TEXT", text), true};
  return {Define("rule", StrCat(lark, text.empty() ? text : Define("TEXT", text))), false};
}

std::string FormatWriter::AnyOf(const std::vector<Part>& parts, bool regular) {
  std::string out;
  for (const Part& part : parts)
    absl::StrAppend(&out, out.empty() ? "" : " | ", regular ? StrCat("(", part.lark, ")") : Item(part));
  return out;
}

MaybeError FormatWriter::WriteJsonSchema(Element format, const std::string& path, Part& out) {
  Element schema, style;
  bool any_order = false;
  if (format["json_schema"].get(schema) || !(schema.is_object() || schema.is_bool()))
    return MustBe(StrCat(path, ".json_schema"), "a JSON Schema");
  if (!format["style"].get(style) && !style.is_null()) {
    std::string_view name;
    if (style.get_string().get(name)) return WrongType(StrCat(path, ".style"), "a string", style);
    if (name != "json") return NotBuilt(StrCat(path, ".style"), StrCat("the style \"", name, "\""));
  }
  if (auto error = ReadFlag(format, "any_order", path, any_order)) return error;
  if (bool any = true; !schema.get_bool().get(any)) {
    if (!any) return MustBe(StrCat(path, ".json_schema"), "a schema that some value fits, got false");
    out = Schema("{}");
  } else if (any_order) {
    std::string text;
    if (auto error = SchemaInAnyOrder(schema, StrCat(path, ".json_schema"), text)) return error;
    out = Schema(text);
  } else {
    out = Schema(TextOf(schema));
  }
  return std::nullopt;
}

MaybeError FormatWriter::WriteAnyText(Element format, const std::string& path, const Behind& behind, Part& out) {
  Element e;
  std::string any = "/(?s:.*)/";
  if (!format["max_tokens"].get(e) && !e.is_null()) return NotBuilt(StrCat(path, ".max_tokens"), "this field");
  if (int64_t most = -1; !format["max_chars"].get(e) && !e.is_null()) {
    if (e.get_int64().get(most) || most < 0 || most > kMaxRepeats)
      return MustBe(StrCat(path, ".max_chars"), StrCat("a number from 0 to ", kMaxRepeats));
    any = StrCat("/(?s:.{0,", most, "})/");
  }
  if (!EndsWithText(behind)) return NoEnd(path);
  std::string body;
  if (auto error = ReadFreeText(format, path, any, body)) return error;
  if (behind->empty()) {
    out = {body, true};
  } else {
    out = {Define("text", StrCat(body, " ", *behind), true), false};
  }
  return std::nullopt;
}

/// All in a row, or one of them.
MaybeError FormatWriter::WriteElements(Element format, const std::string& path, bool all, const Behind& behind,
                                       Part& out) {
  simdjson::dom::array elements;
  if (format["elements"].get_array().get(elements) || elements.size() == 0)
    return MustBe(StrCat(path, ".elements"), "an array of formats");
  std::vector<Part> parts;
  const size_t count = elements.size();
  bool regular = true;
  for (Element one : elements) {
    const size_t i = parts.size();
    const Behind next = all && i + 1 < count ? Behind() : behind;
    if (auto error = Write(one, StrCat(path, ".elements[", i, "]"), next, parts.emplace_back())) return error;
    regular = regular && parts.back().regular;
  }
  out = all ? Joined(parts) : Part{AnyOf(parts, regular), regular};
  return std::nullopt;
}

MaybeError FormatWriter::WriteRepeated(Element format, std::string_view type, const std::string& path, Part& out) {
  int64_t min = type == "plus" ? 1 : 0, max = type == "optional" ? 1 : -1;
  Element content;
  if (type == "repeat") {
    if (format["min"].get_int64().get(min) || min < 0 || min > kMaxRepeats)
      return MustBe(StrCat(path, ".min"), StrCat("a number from 0 to ", kMaxRepeats));
    if (format["max"].get_int64().get(max) || max == 0 || (max > 0 && max < min) || max < -1 || max > kMaxRepeats)
      return MustBe(StrCat(path, ".max"), StrCat("-1, or a number from `min`, at least 1, to ", kMaxRepeats));
  }
  if (format["content"].get(content)) return MustBe(StrCat(path, ".content"), "a format");
  if (auto error = Write(content, StrCat(path, ".content"), std::nullopt, out)) return error;
  const std::string item = out.regular ? StrCat("(", out.lark, ")") : Item(out);
  out.lark = StrCat(item, "{", min, ",", max < 0 ? "" : StrCat(max), "}");
  return std::nullopt;
}

MaybeError FormatWriter::Write(Element format, const std::string& path, const Behind& behind, Part& out) {
  std::string_view type, text;
  if (!format.is_object()) return WrongType(path, "an object", format);
  if (auto error = ReadText(format, "type", path, type)) return error;
  if (type == "any_text") return WriteAnyText(format, path, behind, out);
  if (type == "sequence" || type == "or") return WriteElements(format, path, type == "sequence", behind, out);
  if (type == "tag") {
    Tag tag;
    if (auto error = ReadTag(format, path, behind, tag)) return error;
    out = Joined({BeginOf(tag), tag.inside});
    return std::nullopt;
  }
  if (type == "triggered_tags") {
    std::vector<Tag> tags;
    if (auto error = ReadTags(format, path, tags, Begins::kText)) return error;
    return WriteTriggered(format, path, "tags", tags, behind, out);
  }
  if (IsTokenFormat(type)) return WriteTokenFormat(format, type, path, behind, out);
  MaybeError error;
  if (type == "const_string") {
    if (auto wrong = ReadText(format, "value", path, text)) return wrong;
    out = {QuotedText(text), true};
  } else if (type == "regex") {
    if (auto wrong = ReadText(format, "pattern", path, text)) return wrong;
    out = {RegexLiteral(text), true};
  } else if (type == "grammar") {
    if (auto wrong = ReadText(format, "grammar", path, text)) return wrong;
    const auto rules = RulesBegunBy("start", std::string(text));
    if (!rules.ok())
      return BadRequest(StrCat("`", path, ".grammar`: ", rules.status().message(), "."), StrCat(path, ".grammar"));
    out = {Define("rule", StrCat("%lark {\n", *rules, "\n}")), false};
  } else if (type == "qwen_xml_parameter") {
    error = WriteXmlParameters(format, path, out);
  } else if (type == "json_schema") {
    error = WriteJsonSchema(format, path, out);
  } else if (type == "optional" || type == "plus" || type == "star" || type == "repeat") {
    error = WriteRepeated(format, type, path, out);
  } else if (type == "tags_with_separator") {
    error = WriteSeparated(format, path, out);
  } else {
    return NotBuilt(StrCat(path, ".type"), StrCat("the type \"", type, "\""));
  }
  if (!error) out = Ended(out, behind);
  return error;
}

namespace {

/// The older form: tags whose inside fits a schema.
MaybeError ReadStructures(const std::string& field, Element list, FormatWriter& writer, std::vector<Tag>& out) {
  simdjson::dom::array tags;
  if (list.get_array().get(tags) || tags.size() == 0)
    return BadRequest(StrCat("`", field, ".structures` must be an array of tags."), field);
  for (Element one : tags) {
    Tag& tag = out.emplace_back();
    Element schema;
    std::string_view end;
    if (one["begin"].get_string().get(tag.begin) || tag.begin.empty() || one["end"].get_string().get(end) ||
        one["schema"].get(schema) || !schema.is_object()) {
      return BadRequest(StrCat("`", field, ".structures[", out.size() - 1,
                               "]` needs the strings `begin` and `end` and the object `schema`."),
                        field);
    }
    tag.inside = writer.Joined({writer.Schema(TextOf(schema)), {end.empty() ? "" : QuotedText(end), true}});
  }
  return std::nullopt;
}

}  // namespace

MaybeError StructuralTagGrammar(const std::string& field, Element e, std::string& lark,
                                std::vector<TokenRule>& tokens) {
  Element structures, format;
  FormatWriter writer;
  Part start;
  if (!e["format"].get(format)) {
    if (auto error = writer.Write(format, StrCat(field, ".format"), "", start)) return error;
  } else {
    std::vector<Tag> tags;
    if (e["structures"].get(structures)) return NotBuilt(field, "a structural tag without `structures` or `format`");
    if (auto error = ReadStructures(field, structures, writer, tags)) return error;
    if (auto error = writer.WriteTriggered(e, field, "structures", tags, "", start)) return error;
  }
  lark = writer.Grammar(start);
  tokens = writer.TakeTokenRules();
  return std::nullopt;
}

}  // namespace baton::router::json
