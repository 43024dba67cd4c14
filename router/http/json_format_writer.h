// What writes the formats of structural tags as Lark. Include only from the .cc files that define it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "router/http/json_reader.h"
#include "router/json_writer.h"

namespace baton::router::json {

/// Lark for a part of an answer. Regular: it may stand in a terminal.
struct Part {
  std::string lark;
  bool regular = false;
};

/// What comes behind a part: its text ends with one of `ends` (the name of a terminal), or with the answer (no name).
/// Without a value: another part, so that it must say itself where it ends.
using Behind = std::optional<std::string>;
/// In place of a terminal's name: a token, which is no text.
inline constexpr std::string_view kToken = "<token>";
inline bool EndsWithText(const Behind& behind) { return behind && *behind != kToken; }

struct Tag {
  std::string_view begin;
  std::string begin_token;  ///< the name of a rule, in place of `begin`
  Part inside;              ///< with its end
};

enum class Begins { kText, kToken, kAny };  ///< with what tags begin that stand in one format

/// Writes rules for formats. Each reads the format at `path`, and sets `out` to what matches it and what is behind it.
class FormatWriter {
 public:
  MaybeError Write(Element format, const std::string& path, const Behind& behind, Part& out);
  MaybeError WriteTriggered(Element of, const std::string& path, std::string_view tags_name,
                            const std::vector<Tag>& tags, const Behind& behind, Part& out);
  MaybeError ReadTag(Element tag, const std::string& path, const Behind& behind, Tag& out);
  Part Schema(const std::string& schema) { return {Define("rule", StrCat("%json ", schema)), false}; }
  Part Ended(const Part& part, const Behind& behind) {
    return EndsWithText(behind) && !behind->empty() ? Joined({part, {*behind, true}}) : part;
  }
  Part Joined(const std::vector<Part>& parts);
  std::string Ends(const std::vector<std::string_view>& ends);
  std::string Grammar(const Part& start) { return StrCat("start: ", Item(start), "\n", rules_); }
  std::vector<TokenRule> TakeTokenRules() { return std::move(token_rules_); }

 private:
  // Formats of tokens: json_token_formats.cc.
  MaybeError WriteToken(Element format, const std::string& path, std::string& rule);
  MaybeError WriteTokenFormat(Element format, std::string_view type, const std::string& path, const Behind& behind,
                              Part& out);
  MaybeError WriteTokenTriggered(Element format, const std::string& path, const Behind& behind, Part& out);
  /// `all_but`: with the tokens that end the tag around it.
  MaybeError ReadTokens(Element of, const char* name, const std::string& path, bool all_but, TokenRule& out);
  std::string DefineTokens(TokenRule rule);
  const TokenRule::Named& TokenOf(const std::string& rule) const;  ///< of a rule of one
  MaybeError WriteJsonSchema(Element format, const std::string& path, Part& out);
  MaybeError WriteXmlParameters(Element format, const std::string& path, Part& out);
  MaybeError WriteXmlValue(Element schema, const std::string& path, Element root, std::string& out);
  MaybeError WriteAnyText(Element format, const std::string& path, const Behind& behind, Part& out);
  MaybeError WriteElements(Element format, const std::string& path, bool all, const Behind& behind, Part& out);
  MaybeError WriteRepeated(Element format, std::string_view type, const std::string& path, Part& out);
  MaybeError WriteSeparated(Element format, const std::string& path, Part& out);
  MaybeError ReadTags(Element format, const std::string& path, std::vector<Tag>& out, Begins with);
  MaybeError WriteUpToToken(Element content, Element end, const std::string& path, Part& out);
  MaybeError WriteUpToText(Element content, Element end, const std::string& path, const Behind& behind, Part& out);
  MaybeError ReadFreeText(Element of, const std::string& path, std::string_view any, std::string& out);
  MaybeError WriteFreeUpTo(const std::string& path, const std::string& behind, const std::string& body,
                           const std::vector<std::string_view>& triggers, std::string& out);

  /// The name of a rule, a terminal (TEXT) or a lazy one (text).
  std::string Define(const char* kind, const std::string& body, bool lazy = false) {
    const std::string name = StrCat(kind, "_", ++count_);
    if (rules_.size() < kEnough) absl::StrAppend(&rules_, name, lazy ? "[lazy]: " : ": ", body, "\n");
    return name;
  }
  std::string Item(const Part& part) { return part.regular ? Define("TEXT", part.lark) : StrCat("(", part.lark, ")"); }
  std::string AnyOf(const std::vector<Part>& parts, bool regular);

  static constexpr size_t kEnough = 2 << 20;  ///< more than a grammar may have: it is refused for it

  std::string rules_;
  std::map<std::string, std::vector<std::string_view>> ends_;  ///< by the names of their terminals
  std::vector<TokenRule> token_rules_;
  std::unordered_map<std::string, std::string> rule_names_;  ///< by what they are made of
  std::unordered_map<std::string, size_t> rule_places_;      ///< by their names, in token_rules_
  std::optional<TokenRule::Named> end_token_;  ///< of the tag around what is written, where a token ends it
  size_t count_ = 0;
  size_t pairs_ = 0;  ///< of ends and triggers that were compared
};

inline std::string QuotedText(std::string_view text) {
  std::string out;
  AppendJsonString(text, out);
  return out;
}

inline Part BeginOf(const Tag& tag) {
  if (!tag.begin_token.empty()) return {tag.begin_token, false};
  return {tag.begin.empty() ? "" : QuotedText(tag.begin), true};
}

/// Formats that are told by tokens, not by their texts.
inline bool IsTokenFormat(std::string_view type) {
  return type == "token" || type == "exclude_token" || type == "any_tokens" || type == "token_triggered_tags";
}

inline ApiError MustBe(const std::string& path, std::string_view what) {
  return BadRequest(StrCat("`", path, "` must be ", what, "."), path);
}

inline ApiError NoEnd(const std::string& path) {
  return BadRequest(StrCat("`", path, "`: text without end must come last, or in a tag with an end."), path);
}

/// Not there: as it is.
inline MaybeError ReadFlag(Element of, std::string_view name, const std::string& path, bool& out) {
  Element e;
  if (of[name].get(e) || e.is_null()) return std::nullopt;
  return Read(StrCat(path, ".", name), e, out);
}

/// The schema as one whose objects have their properties in any order (json_any_order.cc).
MaybeError SchemaInAnyOrder(Element schema, const std::string& path, std::string& out);

/// Strings that are not empty.
MaybeError ReadTexts(Element list, const std::string& path, std::vector<std::string_view>& out);

}  // namespace baton::router::json
