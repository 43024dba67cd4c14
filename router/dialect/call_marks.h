// The marks of a form of calls, in Lark. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace baton::router {

/// A mark is a special token where the tokenizer has one of its own for it, else letters like all others.
struct Mark {
  std::string text;
  std::optional<int32_t> token;

  /// What stands in a rule.
  std::string Lark() const;
};
Mark MarkOf(const Tokenizer& tokenizer, std::string_view text);

/// A string as Lark, and as JSON.
std::string Quoted(std::string_view text);
/// A regular expression of this text, as it stands between slashes.
std::string RegexOf(std::string_view text);
/// A terminal's right side: text of at least one character that has nowhere in it what this regular expression is of.
std::string TextWithout(std::string_view regex);

}  // namespace baton::router
