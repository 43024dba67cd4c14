// Formats of structural tags that are told by tokens: one token, any one but some, any number of them, tags that a
// token begins. Which tokens these are is looked up later (router/request/grammar_tokens.h): here they are rules by
// name.
#include <algorithm>

#include "router/http/json_format_writer.h"

namespace baton::router::json {
namespace {

/// What more are as good as no limit: no answer is that long.
constexpr int64_t kManyTokens = 1'000'000;

MaybeError ReadNamed(Element e, const std::string& path, TokenRule::Named& out) {
  std::string_view text;
  int64_t id = 0;
  out.path = path;
  if (!e.get_string().get(text)) {
    out.token = std::string(text);
  } else if (!Read(path, e, id)) {
    out.token = id;
  } else {
    return MustBe(path, "a token: its id, or its text");
  }
  return std::nullopt;
}

/// Equal for equal rules.
std::string TokenRuleKey(const TokenRule& rule) {
  std::string key = rule.all_but ? "-" : "+";
  for (const TokenRule::Named& named : rule.tokens) {
    const auto* text = std::get_if<std::string>(&named.token);
    text != nullptr ? absl::StrAppend(&key, text->size(), ":", *text)
                    : absl::StrAppend(&key, "#", std::get<int64_t>(named.token), ";");
  }
  return key;
}

ApiError NoLastToken(const std::string& path) {
  return BadRequest(StrCat("`", path, "`: any number of tokens must come last, or in a tag that a token ends."), path);
}

}  // namespace

std::string FormatWriter::DefineTokens(TokenRule rule) {
  const auto [known, fresh] = rule_names_.try_emplace(TokenRuleKey(rule));
  if (!fresh) return known->second;
  known->second = rule.name = StrCat("tokens_", ++count_);
  rule_places_[rule.name] = token_rules_.size();
  token_rules_.push_back(std::move(rule));
  return known->second;
}

const TokenRule::Named& FormatWriter::TokenOf(const std::string& rule) const {
  return token_rules_[rule_places_.at(rule)].tokens.front();
}

MaybeError FormatWriter::WriteToken(Element format, const std::string& path, std::string& rule) {
  std::string_view type;
  Element token;
  TokenRule one;
  if (format["type"].get_string().get(type) || type != "token") return MustBe(path, "a string, or a token");
  if (format["token"].get(token)) return MustBe(StrCat(path, ".token"), "a token: its id, or its text");
  if (auto error = ReadNamed(token, StrCat(path, ".token"), one.tokens.emplace_back())) return error;
  rule = DefineTokens(std::move(one));
  return std::nullopt;
}

MaybeError FormatWriter::ReadTokens(Element of, const char* name, const std::string& path, bool all_but,
                                    TokenRule& out) {
  Element list;
  simdjson::dom::array tokens;
  const std::string at = StrCat(path, ".", name);
  out.all_but = all_but;
  if (all_but && end_token_) out.tokens.push_back(*end_token_);
  if (of[name].get(list) || list.is_null()) return std::nullopt;
  if (list.get_array().get(tokens)) return MustBe(at, "an array of tokens");
  size_t i = 0;
  for (Element token : tokens) {
    if (auto error = ReadNamed(token, StrCat(at, "[", i++, "]"), out.tokens.emplace_back())) return error;
  }
  return std::nullopt;
}

MaybeError FormatWriter::WriteTokenFormat(Element format, std::string_view type, const std::string& path,
                                          const Behind& behind, Part& out) {
  if (type == "token_triggered_tags") return WriteTokenTriggered(format, path, behind, out);
  out = {};
  if (type == "token") {
    if (auto error = WriteToken(format, path, out.lark)) return error;
    out = Ended(out, behind);
    return std::nullopt;
  }
  TokenRule tokens;
  if (auto error = ReadTokens(format, "exclude_tokens", path, /*all_but=*/true, tokens)) return error;
  out.lark = DefineTokens(std::move(tokens));
  if (type == "exclude_token") {
    out = Ended(out, behind);
    return std::nullopt;
  }
  int64_t most = kManyTokens;
  if (Element e; !format["max_tokens"].get(e) && !e.is_null()) {
    if (Read(StrCat(path, ".max_tokens"), e, most) || most < 0)
      return MustBe(StrCat(path, ".max_tokens"), "a number that is at least 0");
  }
  if (!behind || (EndsWithText(behind) && !behind->empty())) return NoLastToken(path);
  out.lark = most == 0 ? "\"\"" : StrCat("(", out.lark, most < kManyTokens ? StrCat("{0,", most, "}") : "*", ")");
  return std::nullopt;
}

/// As triggered tags, but each tag is begun by a token, and what is free is tokens.
MaybeError FormatWriter::WriteTokenTriggered(Element format, const std::string& path, const Behind& behind, Part& out) {
  TokenRule triggers, free;
  std::vector<Tag> tags;
  bool at_least_one = false, stop_after_first = false;
  if (auto error = ReadTokens(format, "trigger_tokens", path, /*all_but=*/false, triggers)) return error;
  if (triggers.tokens.empty()) return MustBe(StrCat(path, ".trigger_tokens"), "an array of tokens");
  if (auto error = ReadTags(format, path, tags, Begins::kToken)) return error;
  if (auto error = ReadFlag(format, "at_least_one", path, at_least_one)) return error;
  if (auto error = ReadFlag(format, "stop_after_first", path, stop_after_first)) return error;
  if (auto error = ReadTokens(format, "exclude_tokens", path, /*all_but=*/true, free)) return error;
  if (!behind || (EndsWithText(behind) && !behind->empty())) return NoLastToken(path);
  free.tokens.insert(free.tokens.end(), triggers.tokens.begin(), triggers.tokens.end());
  for (const Tag& tag : tags) free.tokens.push_back(TokenOf(tag.begin_token));
  const std::string any = StrCat(DefineTokens(std::move(free)), "*");
  std::vector<Part> whole;
  for (const Tag& tag : tags) whole.push_back(Joined({BeginOf(tag), tag.inside}));
  const std::string one = Define("rule", AnyOf(whole, false));
  out = {};
  if (stop_after_first) {
    out.lark = at_least_one ? one : StrCat(any, " ", one, "?");
  } else {
    out.lark = StrCat(at_least_one ? one + " " : "", "(", any, " ", one, ")* ", any);
  }
  return std::nullopt;
}

}  // namespace baton::router::json
