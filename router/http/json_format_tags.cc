// Tags of structural tags: one, those that a trigger begins, those with a separator between.
#include <algorithm>
#include <utility>

#include "router/http/json_format_writer.h"

namespace baton::router::json {
namespace {

constexpr size_t kMaxPairs = 4'000'000;

ApiError TooMany(const std::string& path, size_t triggers, size_t others, std::string_view called) {
  const std::string where = StrCat(path, ".triggers");
  return BadRequest(StrCat("`", where, "`: ", triggers, " triggers for ", others, " ", called, " are too many."),
                    where);
}

}  // namespace

std::string FormatWriter::Ends(const std::vector<std::string_view>& ends) {
  std::string any;
  for (std::string_view end : ends) absl::StrAppend(&any, any.empty() ? "" : " | ", QuotedText(end));
  const std::string name = Define("END", any);
  ends_.emplace(name, ends);
  return name;
}

/// Text up to one of the ends `behind`. The lexer stops at the first trigger; where that stands within an end, the rest
/// of the end may follow as well as that of a tag.
MaybeError FormatWriter::WriteFreeUpTo(const std::string& path, const std::string& behind, const std::string& body,
                                       const std::vector<std::string_view>& triggers, std::string& out) {
  const std::vector<std::string_view>& ends = ends_[behind];
  if ((pairs_ += triggers.size() * ends.size()) > kMaxPairs) return TooMany(path, triggers.size(), ends.size(), "ends");
  out = Define("text", StrCat(body, " ", behind), true);
  for (std::string_view end : ends) {
    size_t stop = end.size() + 1;
    for (std::string_view trigger : triggers) {
      if (const size_t at = end.find(trigger); at != end.npos) stop = std::min(stop, at + trigger.size());
    }
    if (stop >= end.size()) continue;
    absl::StrAppend(&out, " | ", Define("text", StrCat(body, " ", QuotedText(end.substr(0, stop))), true), " ",
                    QuotedText(end.substr(stop)));
  }
  out = StrCat("(", out, ")");
  return std::nullopt;
}

MaybeError FormatWriter::ReadTag(Element tag, const std::string& path, const Behind& behind, Tag& out) {
  Element content, end;
  if (std::string_view type; !tag.is_object() || (!tag["type"].get_string().get(type) && type != "tag"))
    return MustBe(path, "a tag");
  if (Element begin; !tag["begin"].get(begin) && begin.is_object()) {
    if (auto error = WriteToken(begin, StrCat(path, ".begin"), out.begin_token)) return error;
  } else if (tag["begin"].get_string().get(out.begin)) {
    return MustBe(StrCat(path, ".begin"), "a string, or a token");
  }
  if (tag["content"].get(content)) return MustBe(StrCat(path, ".content"), "a format");
  if (tag["end"].get(end)) return MustBe(StrCat(path, ".end"), "a string, or an array of strings");
  const auto around = std::exchange(end_token_, std::nullopt);
  auto error = end.is_object() ? WriteUpToToken(content, end, path, out.inside)
                               : WriteUpToText(content, end, path, behind, out.inside);
  end_token_ = around;
  if (!error && end.is_object()) out.inside = Ended(out.inside, behind);
  return error;
}

MaybeError FormatWriter::WriteUpToToken(Element content, Element end, const std::string& path, Part& out) {
  std::string rule;
  if (auto error = WriteToken(end, StrCat(path, ".end"), rule)) return error;
  end_token_ = TokenOf(rule);
  if (auto error = Write(content, StrCat(path, ".content"), std::string(kToken), out)) return error;
  out = Joined({out, {rule, false}});
  return std::nullopt;
}

MaybeError FormatWriter::WriteUpToText(Element content, Element end, const std::string& path, const Behind& behind,
                                       Part& out) {
  std::vector<std::string_view> ends(1);
  if (end.get_string().get(ends[0])) {
    ends.clear();
    if (auto error = ReadTexts(end, StrCat(path, ".end"), ends)) return error;
    if (ends.empty()) return MustBe(StrCat(path, ".end"), "a string, or an array of strings");
  }
  if (ends[0].empty()) return Write(content, StrCat(path, ".content"), behind, out);
  if (auto error = Write(content, StrCat(path, ".content"), Ends(ends), out)) return error;
  out = Ended(out, behind);
  return std::nullopt;
}

MaybeError FormatWriter::ReadTags(Element format, const std::string& path, std::vector<Tag>& out, Begins with) {
  simdjson::dom::array tags;
  if (format["tags"].get_array().get(tags) || tags.size() == 0)
    return MustBe(StrCat(path, ".tags"), "an array of tags");
  for (Element one : tags) {
    const std::string at = StrCat(path, ".tags[", out.size(), "]");
    if (auto error = ReadTag(one, at, std::nullopt, out.emplace_back())) return error;
    const bool by_token = !out.back().begin_token.empty();
    if (with == Begins::kToken && !by_token) return MustBe(StrCat(at, ".begin"), "a token");
    if (with == Begins::kText && by_token) return MustBe(StrCat(at, ".begin"), "a string");
    if (out.back().begin.empty() && !by_token) return MustBe(StrCat(at, ".begin"), "a string that is not empty");
  }
  return std::nullopt;
}

namespace {

/// Of the triggers that begin a tag the shortest comes first in any text, and is the only one that is ever met.
MaybeError FindTriggers(const std::string& path, std::string_view tags_name, const std::vector<Tag>& tags,
                        const std::vector<std::string_view>& triggers, std::vector<size_t>& of_tag) {
  const std::string where = StrCat(path, ".triggers");
  if (triggers.empty()) return MustBe(where, "an array of strings");
  if (triggers.size() * tags.size() > kMaxPairs) return TooMany(path, triggers.size(), tags.size(), "tags");
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

}  // namespace

MaybeError FormatWriter::WriteTriggered(Element of, const std::string& path, std::string_view tags_name,
                                        const std::vector<Tag>& tags, const Behind& behind, Part& out) {
  Element list;
  std::vector<std::string_view> triggers;
  std::vector<size_t> of_tag;
  bool at_least_one = false, stop_after_first = false;
  std::string body, rest;
  if (of["triggers"].get(list)) return MustBe(StrCat(path, ".triggers"), "an array of strings");
  if (auto error = ReadTexts(list, StrCat(path, ".triggers"), triggers)) return error;
  if (auto error = FindTriggers(path, tags_name, tags, triggers, of_tag)) return error;
  if (!EndsWithText(behind)) return NoEnd(path);
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
    begun[of_tag[t]].push_back(Joined({{left.empty() ? "" : QuotedText(left), true}, inside}));
    if (at_least_one) whole.push_back(Joined({{QuotedText(tags[t].begin), true}, inside}));
  }
  std::string any;
  for (size_t i = 0; i < triggers.size(); ++i) {
    if (begun[i].empty()) continue;
    absl::StrAppend(&any, any.empty() ? "" : " | ", Define("text", StrCat(body, " ", QuotedText(triggers[i])), true),
                    " (", AnyOf(begun[i], false), ")");
  }
  std::string free;
  if (behind->empty()) {
    free = StrCat(Define("TEXT", rest), "?");
  } else if (auto error = WriteFreeUpTo(path, *behind, body, triggers, free)) {
    return error;
  }
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
  if (auto error = ReadTags(format, path, tags, Begins::kAny)) return error;
  if (format["separator"].get_string().get(separator)) return MustBe(StrCat(path, ".separator"), "a string");
  if (auto error = ReadFlag(format, "at_least_one", path, at_least_one)) return error;
  if (auto error = ReadFlag(format, "stop_after_first", path, stop_after_first)) return error;
  std::vector<Part> whole;
  for (const Tag& tag : tags) whole.push_back(Joined({BeginOf(tag), tag.inside}));
  const std::string one = Define("rule", AnyOf(whole, false));
  out = {one, false};
  if (!stop_after_first) {
    const Part next = Joined({{separator.empty() ? "" : QuotedText(separator), true}, {one, false}});
    out.lark = StrCat(one, " (", next.lark, ")*");
  }
  if (!at_least_one) out.lark = StrCat("(", out.lark, ")?");
  return std::nullopt;
}

}  // namespace baton::router::json
