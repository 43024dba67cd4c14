#include "router/dialect/call_marks.h"

#include "common/json.h"
#include "common/str_cat.h"

namespace baton::router {

std::string Mark::Lark() const { return token ? StrCat("<[", *token, "]>") : Quoted(text); }

Mark MarkOf(const Tokenizer& tokenizer, std::string_view text) {
  const std::optional<int32_t> token = text.empty() ? std::nullopt : tokenizer.TokenToId(text);
  return {std::string(text), token && tokenizer.IsSpecial(*token) ? token : std::nullopt};
}

std::string Quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string RegexOf(std::string_view text) {
  constexpr std::string_view kMeansMore = R"(\.+*?()|[]{}^$/)";
  std::string regex;
  for (const char c : text) {
    if (kMeansMore.find(c) != std::string_view::npos) regex.push_back('\\');
    regex.push_back(c);
  }
  return regex;
}

std::string TextWithout(std::string_view regex) { return StrCat("/(?s:.+)/ & ~/(?s:.*)", regex, "(?s:.*)/"); }

}  // namespace baton::router
