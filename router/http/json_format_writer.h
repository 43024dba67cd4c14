// What writes the formats of structural tags as Lark. Include only from the .cc files that define it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
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
  MaybeError WriteXmlParameters(Element format, const std::string& path, Part& out);
  MaybeError WriteXmlValue(Element schema, const std::string& path, Element root, std::string& out);
  MaybeError WriteAnyText(Element format, const std::string& path, const Behind& behind, Part& out);
  MaybeError WriteElements(Element format, const std::string& path, bool all, const Behind& behind, Part& out);
  MaybeError WriteRepeated(Element format, std::string_view type, const std::string& path, Part& out);
  MaybeError WriteSeparated(Element format, const std::string& path, Part& out);
  MaybeError ReadTags(Element format, const std::string& path, std::vector<Tag>& out);
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
  size_t count_ = 0;
  size_t pairs_ = 0;  ///< of ends and triggers that were compared
};

inline std::string QuotedText(std::string_view text) {
  std::string out;
  AppendJsonString(text, out);
  return out;
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

/// Strings that are not empty.
MaybeError ReadTexts(Element list, const std::string& path, std::vector<std::string_view>& out);

}  // namespace baton::router::json
