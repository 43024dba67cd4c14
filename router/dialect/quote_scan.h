// Looks for a mark outside of strings, in a text that comes piece by piece. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace baton::router {

class QuoteScan {
 public:
  /// `quotes`: what strings begin and end with. In those of one character a backslash takes the next one along.
  explicit QuoteScan(std::vector<std::string_view> quotes) : quotes_(std::move(quotes)) {}

  /// Where `mark` stands. Nothing: more text is needed; then this goes on where it stopped, of the same text with more
  /// behind it.
  std::optional<size_t> Find(std::string_view text, std::string_view mark) {
    for (; at_ < text.size();) {
      const std::string_view rest = text.substr(at_);
      if (quote_.empty() && rest.starts_with(mark)) return at_;
      const std::string_view quote = QuoteAt(rest);
      const bool open_end = (quote_.empty() && mark.starts_with(rest)) || quote.size() > rest.size();
      const bool escape = quote_.size() == 1 && rest[0] == '\\';
      if (open_end || (escape && rest.size() == 1)) return std::nullopt;
      if (!quote.empty()) quote_ = quote_.empty() ? quote : std::string_view();
      at_ += escape ? 2 : quote.empty() ? 1 : quote.size();
    }
    return std::nullopt;
  }
  /// The text so far ends within a string.
  bool quoted() const { return !quote_.empty(); }
  /// For another text.
  void Restart() { at_ = 0, quote_ = {}; }

 private:
  /// The quote that begins or ends a string here, also one of which only the beginning is there; empty: none.
  std::string_view QuoteAt(std::string_view rest) const {
    for (const std::string_view quote : quotes_) {
      if (!quote_.empty() && quote != quote_) continue;
      if (rest.starts_with(quote) || quote.starts_with(rest)) return quote;
    }
    return {};
  }

  std::vector<std::string_view> quotes_;
  size_t at_ = 0;
  std::string_view quote_;  ///< of the string that the text is in
};

}  // namespace baton::router
