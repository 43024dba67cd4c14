// ChoiceText: turns one choice's tokens into the text a client sees: detokenizer, then stop strings. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "text/detokenizer.h"
#include "text/stop_matcher.h"

namespace baton::router {

struct TokenizedRequest;

/// One per choice; not thread-safe. The tokenizer must outlive it.
class ChoiceText {
 public:
  ChoiceText(const Tokenizer& tokenizer, const TokenizedRequest& generation, StopMatcher matcher);

  /// Takes the next token; returns the text that may be shown now. `is_text`: false for a stop token that only counts.
  /// After a stop string was found nothing more comes out and tokens no longer count.
  std::string Append(int32_t token, bool is_text);
  /// The end: returns the text that was held back. Call once.
  std::string Finish();

  bool stopped() const { return matcher_.match().has_value(); }
  /// The stop string that was found.
  std::optional<std::string> stop_string() const;
  /// Tokens that count in usage: through the one that completed a stop string.
  int32_t tokens() const { return tokens_; }

 private:
  Detokenizer detokenizer_;
  StopMatcher matcher_;
  const int32_t min_tokens_;
  int32_t tokens_ = 0;
};

}  // namespace baton::router
