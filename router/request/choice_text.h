// ChoiceText: turns one choice's tokens into what a client sees: detokenizer, then stop strings, then thoughts apart
// from the answer. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "router/dialect/thoughts.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"

namespace baton::router {

struct TokenizedRequest;

/// One per choice; not thread-safe. The tokenizer must outlive it.
class ChoiceText {
 public:
  using Shown = ThoughtReader::Piece;

  ChoiceText(const Tokenizer& tokenizer, const TokenizedRequest& generation, StopMatcher matcher,
             ThoughtStart thoughts = ThoughtStart::kNone);

  /// Takes the next token; returns what may be shown now. `is_text`: false for a stop token that only counts.
  /// After a stop string was found nothing more comes out and tokens no longer count.
  Shown Append(int32_t token, bool is_text);
  /// The end: returns what was held back. Call once.
  Shown Finish();

  bool stopped() const { return matcher_.match().has_value(); }
  /// The stop string that was found.
  std::optional<std::string> stop_string() const;
  /// Tokens that count in usage: through the one that completed a stop string.
  int32_t tokens() const { return tokens_; }
  /// Those of them that are thoughts, tags and all. Nothing: the answer is not looked at for thoughts.
  std::optional<int32_t> thought_tokens() const { return thoughts_ ? std::optional(thought_tokens_) : std::nullopt; }
  /// The tokens so far are perhaps the beginning of thoughts.
  bool may_be_thoughts() const { return thoughts_ && thoughts_->undecided(); }

 private:
  std::string AppendText(int32_t token, bool is_text);
  std::string FinishText();

  Detokenizer detokenizer_;
  StopMatcher matcher_;
  const int32_t min_tokens_;
  int32_t tokens_ = 0;
  std::optional<ThoughtReader> thoughts_;
  int32_t thought_tokens_ = 0;
};

}  // namespace baton::router
