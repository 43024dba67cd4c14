#include "text/stop_matcher.h"

#include <algorithm>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

StopMatcher Make(std::vector<std::string> stops, bool include = false) {
  auto made = StopMatcher::Create(std::move(stops), include);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

/// What comes out for these token texts, Finish() included when nothing matched.
std::string Feed(StopMatcher& matcher, const std::vector<std::string>& tokens) {
  std::string out;
  for (const std::string& token : tokens) out += matcher.Append(token);
  return matcher.match() ? out : out + matcher.Finish();
}

TEST(StopMatcher, WithoutStopStringsEverythingPassesAtOnce) {
  StopMatcher matcher = Make({});
  EXPECT_EQ(matcher.Append("abc"), "abc");
  EXPECT_FALSE(matcher.match());
}

TEST(StopMatcher, HoldsAPrefixAndLetsItGoWhenItIsNone) {
  StopMatcher matcher = Make({"END"});
  EXPECT_EQ(matcher.Append("the E"), "the ");
  EXPECT_EQ(matcher.held(), "E");
  EXPECT_EQ(matcher.Append("N"), "");
  EXPECT_EQ(matcher.Append("T"), "ENT");
  EXPECT_EQ(matcher.Append("E"), "");
  EXPECT_EQ(matcher.Finish(), "E");
  EXPECT_FALSE(matcher.match());
}

TEST(StopMatcher, CutsBeforeTheStopStringAndNamesTheToken) {
  StopMatcher matcher = Make({"\n\n", "END"});
  EXPECT_EQ(Feed(matcher, {"a E", "N", "D and more", "x"}), "a ");
  ASSERT_TRUE(matcher.match());
  EXPECT_EQ(matcher.match()->stop_index, 1u);
  EXPECT_EQ(matcher.match()->token_index, 2);
  EXPECT_EQ(matcher.matched_string(), "END");
  EXPECT_EQ(matcher.Append("more"), "");
}

TEST(StopMatcher, CanIncludeTheStopString) {
  StopMatcher matcher = Make({"END"}, /*include=*/true);
  EXPECT_EQ(Feed(matcher, {"a E", "NDx"}), "a END");
}

TEST(StopMatcher, OverlappingPrefixesFallBack) {
  StopMatcher matcher = Make({"aab"});
  EXPECT_EQ(Feed(matcher, {"a", "a", "a", "a", "b"}), "aa");
  EXPECT_TRUE(matcher.match());
  StopMatcher twice = Make({"aabaaac"});  // "aabaaa" ends with "aa", which is not found by one step back alone
  EXPECT_EQ(Feed(twice, {"aabaaab", "aaac"}), "aaba");
  EXPECT_TRUE(twice.match());
}

TEST(StopMatcher, OfStopsThatEndTogetherTheLongestWins) {
  StopMatcher matcher = Make({"b", "ab"});
  EXPECT_EQ(Feed(matcher, {"xa", "b"}), "x");
  EXPECT_EQ(matcher.match()->stop_index, 1u);
}

TEST(StopMatcher, OfEqualStopsTheFirstListedWins) {
  StopMatcher matcher = Make({"x", "ab", "ab"});
  EXPECT_EQ(Feed(matcher, {"1ab"}), "1");
  EXPECT_EQ(matcher.match()->stop_index, 1u);
}

TEST(StopMatcher, EmptyOrMalformedStopsAreRefused) {
  EXPECT_THAT(std::string(StopMatcher::Create({"ok", ""}, false).status().message()), testing::HasSubstr("stop[1]"));
  EXPECT_THAT(std::string(StopMatcher::Create({"\xC3"}, false).status().message()), testing::HasSubstr("UTF-8"));
}

TEST(StopMatcher, TailBelongsToTheLastToken) {
  StopMatcher matcher = Make({"�"});
  EXPECT_EQ(matcher.Append("a"), "a");
  EXPECT_EQ(matcher.Append(""), "");
  EXPECT_EQ(matcher.AppendTail("�"), "");
  EXPECT_EQ(matcher.match()->token_index, 1);
}

// An oracle that looks at the whole text: the stop that ends first, then the longest.
std::optional<std::pair<size_t, size_t>> FirstMatch(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0)
        longest = std::max(longest, stop.size());
    }
    if (longest > 0) return std::pair{end - longest, end};
  }
  return std::nullopt;
}

/// The longest end of `text` that is a proper prefix of a stop string.
size_t OpenPrefix(const std::string& text, const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    for (size_t n = 1; n < stop.size() && n <= text.size(); ++n) {
      if (text.compare(text.size() - n, n, stop, 0, n) == 0) longest = std::max(longest, n);
    }
  }
  return longest;
}

TEST(StopMatcher, AgreesWithSearchingTheWholeTextHoweverItIsCut) {
  std::mt19937 random(1);
  const auto word = [&random](size_t longest) {
    std::string text;
    for (size_t n = 1 + random() % longest; n > 0; --n) text += static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    for (size_t n = 1 + random() % 4; n > 0; --n) stops.push_back(word(5));
    const bool include = random() % 2 == 0;
    StopMatcher matcher = Make(stops, include);
    std::string text, shown;
    int64_t token = 0, matched_at = -1;
    for (; token < 12; ++token) {
      const std::string piece = random() % 4 == 0 ? "" : word(4);
      text += piece;
      shown += matcher.Append(piece);
      const auto match = FirstMatch(text, stops);
      ASSERT_EQ(matcher.match().has_value(), match.has_value()) << text;
      if (match) {
        matched_at = token;
        ASSERT_EQ(shown, text.substr(0, include ? match->second : match->first));
        ASSERT_EQ(matcher.match()->token_index, matched_at);
        ASSERT_EQ(matcher.matched_string().size(), match->second - match->first);
        break;
      }
      // All but what may become a stop string is out, and nothing that may.
      ASSERT_EQ(shown.size(), text.size() - OpenPrefix(text, stops));
      ASSERT_TRUE(text.starts_with(shown));
    }
    if (matched_at < 0) {
      ASSERT_EQ(shown + matcher.Finish(), text);
    }
  }
}

}  // namespace
}  // namespace baton
