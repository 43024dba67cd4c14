// StopMatcher: finds stop strings in streamed text, and holds back what may become one. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

/// A stop string that was found.
struct StopMatch {
  size_t stop_index;    ///< which of the stop strings
  int64_t token_index;  ///< 0-based index of the token whose text completed it; that token still counts in `usage`
};

/// One per sequence; not thread-safe. The match is the one that ends first in the text (of several that end there, the
/// longest, then the first listed), so it does not depend on how the text is cut into tokens.
class StopMatcher {
 public:
  /// InvalidArgument: an empty stop string, or one that is not UTF-8. No stop strings is fine: everything passes.
  /// `include_stop_string`: the text that is let through ends with the stop string instead of before it.
  static absl::StatusOr<StopMatcher> Create(std::vector<std::string> stops, bool include_stop_string);

  /// Takes the text of the next token ("" when the detokenizer holds it) and returns what may be shown: never a prefix
  /// of a stop string at the end. After a match nothing more comes out.
  std::string Append(std::string_view token_text);
  /// Text that belongs to no new token (Detokenizer::Finish()); counts for the last token.
  std::string AppendTail(std::string_view text);
  /// The end of the sequence without a match: what was held.
  std::string Finish();

  const std::optional<StopMatch>& match() const { return match_; }
  /// The stop string that was found. Only after a match.
  const std::string& matched_string() const { return stops_[match_->stop_index].text; }
  /// Text held back because it may become a stop string.
  std::string_view held() const { return held_; }

 private:
  struct Stop {
    std::string text;
    std::vector<uint32_t> fallback;  // Knuth-Morris-Pratt: [length of text + 1]
    uint32_t matched = 0;            // bytes of text that the stream now ends with
  };
  StopMatcher(std::vector<Stop> stops, bool include) : stops_(std::move(stops)), include_(include) {}
  std::string Scan(std::string_view text);

  std::vector<Stop> stops_;
  bool include_;
  std::string held_;
  int64_t tokens_ = 0;
  std::optional<StopMatch> match_;
};

}  // namespace baton
