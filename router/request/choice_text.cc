#include "router/request/choice_text.h"

#include <utility>

#include "router/request_types.h"

namespace baton::router {

ChoiceText::ChoiceText(const Tokenizer& tokenizer, const TokenizedRequest& generation, StopMatcher matcher,
                       ThoughtStart thoughts)
    : detokenizer_(tokenizer, generation.skip_special_tokens, DetokenizeFrom::kPrompt),
      matcher_(std::move(matcher)),
      min_tokens_(generation.sampling.min_tokens.value_or(0)) {
  if (thoughts != ThoughtStart::kNone) thoughts_.emplace(thoughts);
}

// The token with which thoughts end is one of theirs.
ChoiceText::Shown ChoiceText::Append(int32_t token, bool is_text) {
  std::string text = AppendText(token, is_text);
  if (!thoughts_) return {"", std::move(text)};
  const bool thought = thoughts_->thinking();
  Shown shown = thoughts_->Append(text);
  if (thought || thoughts_->thinking() || !shown.thoughts.empty()) thought_tokens_ = tokens_;
  return shown;
}

ChoiceText::Shown ChoiceText::Finish() {
  std::string text = FinishText();
  if (!thoughts_) return {"", std::move(text)};
  Shown shown = thoughts_->Append(text);
  Shown last = thoughts_->Finish();
  return {shown.thoughts + last.thoughts, shown.text + last.text};
}

std::string ChoiceText::AppendText(int32_t token, bool is_text) {
  if (stopped()) return "";
  ++tokens_;
  std::string text = is_text ? detokenizer_.Append(token) : "";
  if (tokens_ <= min_tokens_) return text;  // stop strings are looked for after min_tokens only
  return matcher_.Append(text);
}

std::string ChoiceText::FinishText() {
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
