#include "router/request/grammar_tokens.h"

#include <algorithm>
#include <set>

#include "common/foreign_text.h"
#include "common/str_cat.h"
#include "router/dialect/thoughts.h"

namespace baton::router {
namespace {

std::variant<int32_t, ApiError> TokenId(const TokenRule::Named& named, const Tokenizer& tokenizer) {
  const auto wrong = [&](const auto&... words) {
    return BadRequest(StrCat("`", named.path, "`: ", words...), named.path);
  };
  std::optional<int32_t> id;
  if (const auto* text = std::get_if<std::string>(&named.token)) {
    id = tokenizer.TokenToId(*text);
    if (!id) return wrong("the model has no token \"", Printable(*text), "\".");
  } else {
    const int64_t number = std::get<int64_t>(named.token);
    if (number < 0 || number >= tokenizer.vocab_size())
      return wrong("the model's tokens are 0 to ", tokenizer.vocab_size() - 1, ", got ", number, ".");
    id = static_cast<int32_t>(number);
  }
  return *id;
}

}  // namespace

std::optional<ApiError> WriteTokenRules(const std::vector<TokenRule>& rules, const Tokenizer& tokenizer,
                                        std::shared_ptr<const Grammar>& grammar) {
  if (rules.empty() || !grammar) return std::nullopt;
  Grammar whole = *grammar;
  const auto& eos = tokenizer.eos_ids();
  for (const TokenRule& rule : rules) {
    std::set<int32_t> ids;
    for (const TokenRule::Named& named : rule.tokens) {
      auto id = TokenId(named, tokenizer);
      if (auto* error = std::get_if<ApiError>(&id)) return std::move(*error);
      ids.insert(std::get<int32_t>(id));
      if (!rule.all_but && std::find(eos.begin(), eos.end(), std::get<int32_t>(id)) != eos.end())
        return BadRequest(StrCat("`", named.path, "`: this token ends a text."), named.path);
    }
    std::string some;
    for (const int32_t id : ids) absl::StrAppend(&some, some.empty() ? "" : ",", id);
    absl::StrAppend(&whole.text, rule.name, ": ",
                    rule.all_but ? AllTokensBut(tokenizer, ids) : StrCat("<[", some, "]>"), "\n");
  }
  grammar = std::make_shared<const Grammar>(std::move(whole));
  return std::nullopt;
}

}  // namespace baton::router
