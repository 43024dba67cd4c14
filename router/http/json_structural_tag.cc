// vLLM's structural tags, both its forms, as Lark. Text up to a trigger, or up to an end, is one lazy terminal, so that
// no text goes on behind it as if it were none. What is regular becomes one terminal together with its neighbours:
// between two terminals the longer match wins, which would leave no text for what comes behind `[a-z]+`.
#include <algorithm>

#include "absl/strings/str_replace.h"
#include "router/http/json_reader.h"
#include "router/json_writer.h"

namespace baton::router::json {
namespace {

constexpr int64_t kMaxRepeats = 10'000;

std::string Quoted(std::string_view text) {
  std::string out;
  AppendJsonString(text, out);
  return out;
}

std::string RegexLiteral(std::string_view pattern) {
  return StrCat(
      "/", absl::StrReplaceAll(std::string(pattern), {{"\\\\", "\\\\"}, {"\\/", "\\/"}, {"/", "\\/"}, {"\n", "\\n"}}),
      "/");
}

/// Lark for a part of an answer. Regular: it may stand in a terminal.
struct Part {
  std::string lark;
  bool regular = false;
};

/// What comes behind a part: its text ends with one of `ends` (the name of a terminal), or with the answer (no name).
/// Without a value: another part, so that it must say itself where it ends.
using Behind = std::optional<std::string>;

struct Tag {
  std::string_view begin;
  Part inside;  ///< with its end
};

/// Writes rules for formats. Each reads the format at `path`, and sets `out` to what matches it and what is behind it.
class FormatWriter {
 public:
  MaybeError Write(Element format, const std::string& path, const Behind& behind, Part& out);
  MaybeError WriteTriggered(Element of, const std::string& path, std::string_view tags_name,
                            const std::vector<Tag>& tags, const Behind& behind, Part& out);
  MaybeError ReadTag(Element tag, const std::string& path, const Behind& behind, Tag& out);
  Part Schema(const std::string& schema) { return {Define("rule", StrCat("%json ", schema)), false}; }
  Part Ended(const Part& part, const Behind& behind) {
    return behind && !behind->empty() ? Joined({part, {*behind, true}}) : part;
  }
  Part Joined(const std::vector<Part>& parts);
  std::string Ends(const std::vector<std::string_view>& ends);
  std::string Grammar(const Part& start) { return StrCat("start: ", Item(start), "\n", rules_); }

 private:
  MaybeError WriteJsonSchema(Element format, const std::string& path, Part& out);
  MaybeError WriteAnyText(Element format, const std::string& path, const Behind& behind, Part& out);
  MaybeError WriteElements(Element format, const std::string& path, bool all, const Behind& behind, Part& out);
  MaybeError WriteRepeated(Element format, std::string_view type, const std::string& path, Part& out);
  MaybeError WriteSeparated(Element format, const std::string& path, Part& out);
  MaybeError ReadTags(Element format, const std::string& path, std::vector<Tag>& out);
  MaybeError ReadFreeText(Element of, const std::string& path, std::string_view any, std::string& out);

  /// The name of a rule, a terminal (TEXT) or a lazy one (text).
  std::string Define(const char* kind, const std::string& body, bool lazy = false) {
    const std::string name = StrCat(kind, "_", ++count_);
    absl::StrAppend(&rules_, name, lazy ? "[lazy]: " : ": ", body, "\n");
    return name;
  }
  std::string Item(const Part& part) { return part.regular ? Define("TEXT", part.lark) : StrCat("(", part.lark, ")"); }
  std::string AnyOf(const std::vector<Part>& parts, bool regular);

  std::string rules_;
  size_t count_ = 0;
};

ApiError Wrong(const std::string& path, std::string_view must) {
  return BadRequest(StrCat("`", path, "` must be ", must, "."), path);
}

ApiError NoEnd(const std::string& path) {
  return BadRequest(StrCat("`", path, "`: text without end must come last, or in a tag with an end."), path);
}

MaybeError ReadText(Element of, std::string_view name, const std::string& path, std::string_view& out) {
  if (of[name].get_string().get(out) || out.empty())
    return Wrong(StrCat(path, ".", name), "a string that is not empty");
  return std::nullopt;
}

/// Not there: as it is.
MaybeError ReadFlag(Element of, std::string_view name, const std::string& path, bool& out) {
  Element e;
  if (of[name].get(e) || e.is_null()) return std::nullopt;
  return Read(StrCat(path, ".", name), e, out);
}

MaybeError ReadTexts(Element list, const std::string& path, std::vector<std::string_view>& out) {
  simdjson::dom::array texts;
  if (list.get_array().get(texts)) return Wrong(path, "an array of strings");
  for (Element one : texts) {
    if (one.get_string().get(out.emplace_back()) || out.back().empty()) return Wrong(path, "an array of strings");
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
  for (std::string_view text : excludes) absl::StrAppend(&some, some.empty() ? "" : " | ", Quoted(text));
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

std::string FormatWriter::Ends(const std::vector<std::string_view>& ends) {
  std::string any;
  for (std::string_view end : ends) absl::StrAppend(&any, any.empty() ? "" : " | ", Quoted(end));
  return Define("END", any);
}

MaybeError FormatWriter::WriteJsonSchema(Element format, const std::string& path, Part& out) {
  Element schema, style;
  bool any_order = false;
  if (format["json_schema"].get(schema) || !(schema.is_object() || schema.is_bool()))
    return Wrong(StrCat(path, ".json_schema"), "a JSON Schema");
  if (!format["style"].get(style) && !style.is_null()) {
    std::string_view name;
    if (style.get_string().get(name)) return WrongType(StrCat(path, ".style"), "a string", style);
    if (name != "json") return NotBuilt(StrCat(path, ".style"), StrCat("the style \"", name, "\""));
  }
  if (auto error = ReadFlag(format, "any_order", path, any_order)) return error;
  if (any_order) return NotBuilt(StrCat(path, ".any_order"), "this field");
  if (bool any = true; !schema.get_bool().get(any)) {
    if (!any) return Wrong(StrCat(path, ".json_schema"), "a schema that some value fits, got false");
    out = Schema("{}");
  } else {
    out = Schema(simdjson::minify(schema));
  }
  return std::nullopt;
}

MaybeError FormatWriter::WriteAnyText(Element format, const std::string& path, const Behind& behind, Part& out) {
  for (const char* limit : {"max_tokens", "max_chars"}) {
    if (Element e; !format[limit].get(e) && !e.is_null()) return NotBuilt(StrCat(path, ".", limit), "this field");
  }
  if (!behind) return NoEnd(path);
  std::string body;
  if (auto error = ReadFreeText(format, path, "/(?s:.*)/", body)) return error;
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
    return Wrong(StrCat(path, ".elements"), "an array of formats");
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
      return Wrong(StrCat(path, ".min"), StrCat("a number from 0 to ", kMaxRepeats));
    if (format["max"].get_int64().get(max) || max == 0 || (max > 0 && max < min) || max < -1 || max > kMaxRepeats)
      return Wrong(StrCat(path, ".max"), StrCat("-1, or a number from `min`, at least 1, to ", kMaxRepeats));
  }
  if (format["content"].get(content)) return Wrong(StrCat(path, ".content"), "a format");
  if (auto error = Write(content, StrCat(path, ".content"), std::nullopt, out)) return error;
  const std::string item = out.regular ? StrCat("(", out.lark, ")") : Item(out);
  out.lark = StrCat(item, "{", min, ",", max < 0 ? "" : StrCat(max), "}");
  return std::nullopt;
}

MaybeError FormatWriter::ReadTag(Element tag, const std::string& path, const Behind& behind, Tag& out) {
  Element content, end;
  std::vector<std::string_view> ends(1);
  if (std::string_view type; !tag.is_object() || (!tag["type"].get_string().get(type) && type != "tag"))
    return Wrong(path, "a tag");
  if (Element begin; !tag["begin"].get(begin) && begin.is_object())
    return NotBuilt(StrCat(path, ".begin"), "the type \"token\"");
  if (tag["begin"].get_string().get(out.begin)) return Wrong(StrCat(path, ".begin"), "a string");
  if (tag["content"].get(content)) return Wrong(StrCat(path, ".content"), "a format");
  if (tag["end"].get(end)) return Wrong(StrCat(path, ".end"), "a string, or an array of strings");
  if (end.is_object()) return NotBuilt(StrCat(path, ".end"), "the type \"token\"");
  if (end.get_string().get(ends[0])) {
    ends.clear();
    if (auto error = ReadTexts(end, StrCat(path, ".end"), ends)) return error;
    if (ends.empty()) return Wrong(StrCat(path, ".end"), "a string, or an array of strings");
  }
  if (ends[0].empty()) return Write(content, StrCat(path, ".content"), behind, out.inside);
  if (auto error = Write(content, StrCat(path, ".content"), Ends(ends), out.inside)) return error;
  out.inside = Ended(out.inside, behind);
  return std::nullopt;
}

MaybeError FormatWriter::ReadTags(Element format, const std::string& path, std::vector<Tag>& out) {
  simdjson::dom::array tags;
  if (format["tags"].get_array().get(tags) || tags.size() == 0) return Wrong(StrCat(path, ".tags"), "an array of tags");
  for (Element one : tags) {
    const std::string at = StrCat(path, ".tags[", out.size(), "]");
    if (auto error = ReadTag(one, at, std::nullopt, out.emplace_back())) return error;
    if (out.back().begin.empty()) return Wrong(StrCat(at, ".begin"), "a string that is not empty");
  }
  return std::nullopt;
}

/// Of the triggers that begin a tag the shortest comes first in any text, and is the only one that is ever met.
MaybeError FindTriggers(const std::string& path, std::string_view tags_name, const std::vector<Tag>& tags,
                        const std::vector<std::string_view>& triggers, std::vector<size_t>& of_tag) {
  constexpr size_t kMaxPairs = 4'000'000;
  const std::string where = StrCat(path, ".triggers");
  if (triggers.empty()) return Wrong(where, "an array of strings");
  if (triggers.size() * tags.size() > kMaxPairs)
    return BadRequest(StrCat("`", where, "`: ", triggers.size(), " triggers for ", tags.size(), " tags are too many."),
                      where);
  std::vector<bool> used(triggers.size());
  of_tag.assign(tags.size(), triggers.size());
  for (size_t t = 0; t < tags.size(); ++t) {
    for (size_t i = 0; i < triggers.size(); ++i) {
      if (!tags[t].begin.starts_with(triggers[i])) continue;
      used[i] = true;
      if (of_tag[t] == triggers.size() || triggers[i].size() < triggers[of_tag[t]].size()) of_tag[t] = i;
    }
  }
  for (size_t i = 0; i < triggers.size(); ++i) {
    const std::string at = StrCat(where, "[", i, "]");
    if (!used[i])
      return BadRequest(StrCat("`", at, "`: none of the ", tags_name, " begins with ", triggers[i], "."), at);
  }
  for (size_t t = 0; t < tags.size(); ++t) {
    if (of_tag[t] == triggers.size())
      return BadRequest(StrCat("`", path, "`: no trigger begins ", tags[t].begin, "."), path);
  }
  return std::nullopt;
}

MaybeError FormatWriter::WriteTriggered(Element of, const std::string& path, std::string_view tags_name,
                                        const std::vector<Tag>& tags, const Behind& behind, Part& out) {
  Element list;
  std::vector<std::string_view> triggers;
  std::vector<size_t> of_tag;
  bool at_least_one = false, stop_after_first = false;
  std::string body, rest;
  if (of["triggers"].get(list)) return Wrong(StrCat(path, ".triggers"), "an array of strings");
  if (auto error = ReadTexts(list, StrCat(path, ".triggers"), triggers)) return error;
  if (auto error = FindTriggers(path, tags_name, tags, triggers, of_tag)) return error;
  if (!behind) return NoEnd(path);
  if (auto error = ReadFlag(of, "at_least_one", path, at_least_one)) return error;
  if (auto error = ReadFlag(of, "stop_after_first", path, stop_after_first)) return error;
  if (auto error = ReadFreeText(of, path, "/(?s:.*)/", body)) return error;
  if (auto error = ReadFreeText(of, path, "/(?s:.+)/", rest)) return error;
  std::vector<std::vector<Part>> begun(triggers.size());
  std::vector<Part> whole;
  for (size_t t = 0; t < tags.size(); ++t) {
    const Part& read = tags[t].inside;
    const Part inside = read.regular ? read : Part{Define("rule", read.lark), false};
    const std::string_view left = tags[t].begin.substr(triggers[of_tag[t]].size());
    begun[of_tag[t]].push_back(Joined({{left.empty() ? "" : Quoted(left), true}, inside}));
    if (at_least_one) whole.push_back(Joined({{Quoted(tags[t].begin), true}, inside}));
  }
  std::string any;
  for (size_t i = 0; i < triggers.size(); ++i) {
    if (begun[i].empty()) continue;
    absl::StrAppend(&any, any.empty() ? "" : " | ", Define("text", StrCat(body, " ", Quoted(triggers[i])), true), " (",
                    AnyOf(begun[i], false), ")");
  }
  const std::string free =
      behind->empty() ? StrCat(Define("TEXT", rest), "?") : Define("text", StrCat(body, " ", *behind), true);
  const std::string first = StrCat("(", AnyOf(whole, false), ")");
  out = {};
  if (stop_after_first) {
    out.lark = StrCat(at_least_one ? first : StrCat("(", any, ")"), " ", *behind);
    if (!at_least_one) absl::StrAppend(&out.lark, " | ", free);
  } else {
    out.lark = StrCat(at_least_one ? first + " " : "", "(", any, ")* ", free);
  }
  return std::nullopt;
}

MaybeError FormatWriter::WriteSeparated(Element format, const std::string& path, Part& out) {
  std::vector<Tag> tags;
  std::string_view separator;
  bool at_least_one = false, stop_after_first = false;
  if (auto error = ReadTags(format, path, tags)) return error;
  if (format["separator"].get_string().get(separator)) return Wrong(StrCat(path, ".separator"), "a string");
  if (auto error = ReadFlag(format, "at_least_one", path, at_least_one)) return error;
  if (auto error = ReadFlag(format, "stop_after_first", path, stop_after_first)) return error;
  std::vector<Part> whole;
  for (const Tag& tag : tags) whole.push_back(Joined({{Quoted(tag.begin), true}, tag.inside}));
  const std::string one = Define("rule", AnyOf(whole, false));
  out = {one, false};
  if (!stop_after_first) {
    const Part next = Joined({{separator.empty() ? "" : Quoted(separator), true}, {one, false}});
    out.lark = StrCat(one, " (", next.lark, ")*");
  }
  if (!at_least_one) out.lark = StrCat("(", out.lark, ")?");
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
    out = Joined({{tag.begin.empty() ? "" : Quoted(tag.begin), true}, tag.inside});
    return std::nullopt;
  }
  if (type == "triggered_tags") {
    std::vector<Tag> tags;
    if (auto error = ReadTags(format, path, tags)) return error;
    return WriteTriggered(format, path, "tags", tags, behind, out);
  }
  MaybeError error;
  if (type == "const_string") {
    if ((error = ReadText(format, "value", path, text))) return error;
    out = {Quoted(text), true};
  } else if (type == "regex") {
    if ((error = ReadText(format, "pattern", path, text))) return error;
    out = {RegexLiteral(text), true};
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
    tag.inside = writer.Joined({writer.Schema(simdjson::minify(schema)), {end.empty() ? "" : Quoted(end), true}});
  }
  return std::nullopt;
}

}  // namespace

MaybeError StructuralTagGrammar(const std::string& field, Element e, std::string& lark) {
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
  return std::nullopt;
}

}  // namespace baton::router::json
