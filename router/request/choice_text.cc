#include "router/request/choice_text.h"

#include <utility>

#include "router/request_types.h"

namespace baton::router {

ChoiceText::ChoiceText(const Tokenizer& tokenizer, const TokenizedRequest& generation, StopMatcher matcher)
    : detokenizer_(tokenizer, generation.skip_special_tokens, DetokenizeFrom::kPrompt),
      matcher_(std::move(matcher)),
      min_tokens_(generation.sampling.min_tokens.value_or(0)) {}

std::string ChoiceText::Append(int32_t token, bool is_text) {
  if (stopped()) return "";
  ++tokens_;
  std::string text = is_text ? detokenizer_.Append(token) : "";
  if (tokens_ <= min_tokens_) return text;  // stop strings are looked for after min_tokens only
  return matcher_.Append(text);
}

std::string ChoiceText::Finish() {
  if (stopped()) return "";
  std::string text = detokenizer_.Finish();
  if (tokens_ <= min_tokens_) return text;
  text = matcher_.AppendTail(text);
  if (!stopped()) text += matcher_.Finish();
  return text;
}

std::optional<std::string> ChoiceText::stop_string() const {
  if (!stopped()) return std::nullopt;
  return matcher_.matched_string();
}

}  // namespace baton::router
