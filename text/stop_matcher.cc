#include "text/stop_matcher.h"

#include <algorithm>

#include "common/status.h"
#include "common/str_cat.h"
#include "common/utf8.h"

namespace baton {
namespace {

/// fallback[n]: the longest proper prefix of `text` that the first n bytes of `text` end with.
std::vector<uint32_t> FallbackOf(std::string_view text) {
  std::vector<uint32_t> fallback(text.size() + 1, 0);
  uint32_t length = 0;
  for (size_t i = 1; i < text.size(); ++i) {
    while (length > 0 && text[i] != text[length]) length = fallback[length];
    if (text[i] == text[length]) ++length;
    fallback[i + 1] = length;
  }
  return fallback;
}

}  // namespace

absl::StatusOr<StopMatcher> StopMatcher::Create(std::vector<std::string> stops, bool include_stop_string) {
  std::vector<Stop> made;
  for (std::string& text : stops) {
    const size_t i = made.size();
    if (text.empty()) return absl::InvalidArgumentError(StrCat("stop[", i, "] is empty"));
    if (!IsUtf8(text)) return absl::InvalidArgumentError(StrCat("stop[", i, "] is not UTF-8"));
    std::vector<uint32_t> fallback = FallbackOf(text);
    made.push_back({std::move(text), std::move(fallback), 0});
  }
  return StopMatcher(std::move(made), include_stop_string);
}

std::string StopMatcher::Scan(std::string_view text) {
  if (stops_.empty()) return std::string(text);
  std::string open = std::move(held_) + std::string(text);  // everything that is not out yet
  const size_t old = open.size() - text.size();
  held_.clear();
  for (size_t at = old; at < open.size(); ++at) {
    size_t longest = 0;
    for (size_t s = 0; s < stops_.size(); ++s) {
      Stop& stop = stops_[s];
      while (stop.matched > 0 && open[at] != stop.text[stop.matched]) stop.matched = stop.fallback[stop.matched];
      if (open[at] == stop.text[stop.matched]) ++stop.matched;
      if (stop.matched == stop.text.size() && stop.matched > longest) {
        longest = stop.matched;
        match_ = StopMatch{s, tokens_ - 1};
      }
    }
    if (match_) {
      open.resize(at + 1 - (include_ ? 0 : longest));
      return open;
    }
  }
  size_t keep = 0;
  for (const Stop& stop : stops_) keep = std::max<size_t>(keep, stop.matched);
  held_ = open.substr(open.size() - keep);
  open.resize(open.size() - keep);
  return open;
}

std::string StopMatcher::Append(std::string_view token_text) {
  if (match_) return "";
  ++tokens_;
  return Scan(token_text);
}

std::string StopMatcher::AppendTail(std::string_view text) {
  if (match_) return "";
  return Scan(text);
}

std::string StopMatcher::Finish() {
  for (Stop& stop : stops_) stop.matched = 0;
  return std::exchange(held_, std::string());
}

}  // namespace baton
