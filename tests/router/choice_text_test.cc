// One choice's text: which tokens count, and from which one on stop strings are looked for.
#include "router/request/choice_text.h"

#include <gtest/gtest.h>

#include "router/request_types.h"

namespace baton::router {
namespace {

const Tokenizer& TinyTokenizer() {
  static const auto* tokenizer = Tokenizer::FromHfDirectory("tests/data/tiny-llama").value().release();
  return *tokenizer;
}

// The tiny model has a token of its own for each letter.
int32_t Letter(char c) { return 67 + (c - 'a'); }

struct Shown {
  std::string text;
  int32_t tokens;
  std::optional<std::string> stop;
  bool operator==(const Shown&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Shown& s) {
  return out << '"' << s.text << "\" by " << s.tokens << " tokens, stop " << s.stop.value_or("none");
}

// What a client sees of `letters`, a token each.
Shown Show(std::string_view letters, std::vector<std::string> stops, int32_t min_tokens, bool include = false) {
  TokenizedRequest generation;
  generation.sampling.min_tokens = min_tokens;
  ChoiceText choice(TinyTokenizer(), generation, StopMatcher::Create(std::move(stops), include).value());
  std::string text;
  for (const char c : letters) text += choice.Append(Letter(c), true).text;
  text += choice.Finish().text;
  return {text, choice.tokens(), choice.stop_string()};
}

TEST(ChoiceText, AStopStringEndsTheTextAndTheCountWithItsLastToken) {
  EXPECT_EQ(Show("abcdef", {"cd"}, 0), (Shown{"ab", 4, "cd"}));
  EXPECT_EQ(Show("abcdef", {"cd"}, 0, /*include=*/true), (Shown{"abcd", 4, "cd"}));
  EXPECT_EQ(Show("abcdef", {"x"}, 0), (Shown{"abcdef", 6, {}}));
}

TEST(ChoiceText, StopStringsAreLookedForAfterMinTokensOnly) {
  EXPECT_EQ(Show("abcab", {"b"}, 1), (Shown{"a", 2, "b"})) << "the second token is after one";
  EXPECT_EQ(Show("abcab", {"b"}, 2), (Shown{"abca", 5, "b"})) << "the second token is still one of two";
  EXPECT_EQ(Show("abcab", {"b"}, 4), (Shown{"abca", 5, "b"}));
  EXPECT_EQ(Show("abcab", {"b"}, 5), (Shown{"abcab", 5, {}})) << "the whole answer was asked for";
  EXPECT_EQ(Show("abcab", {"a"}, 0), (Shown{"", 1, "a"}));
}

TEST(ChoiceText, TextThatIsHeldAtTheEndComesOut) {
  EXPECT_EQ(Show("abc", {"cd"}, 0), (Shown{"abc", 3, {}}));
  EXPECT_EQ(Show("abc", {"cd"}, 3), (Shown{"abc", 3, {}}));
}

TEST(ChoiceText, WhatACutCharacterBecomesIsNoStopStringWithinMinTokensEither) {
  constexpr int32_t kFirstByteOfThree = 161;
  for (const int32_t min_tokens : {0, 1, 2}) {
    TokenizedRequest generation;
    generation.sampling.min_tokens = min_tokens;
    ChoiceText choice(TinyTokenizer(), generation, StopMatcher::Create({"\xEF\xBF\xBD"}, false).value());
    std::string text = choice.Append(Letter('a'), true).text;
    text += choice.Append(kFirstByteOfThree, true).text;
    text += choice.Finish().text;
    EXPECT_EQ(text, min_tokens < 2 ? "a" : "a\xEF\xBF\xBD") << min_tokens;
    EXPECT_EQ(choice.stopped(), min_tokens < 2) << min_tokens;
  }
}

TEST(ChoiceText, AStopTokenCountsAndIsNoText) {
  ChoiceText choice(TinyTokenizer(), TokenizedRequest{}, StopMatcher::Create({"b"}, false).value());
  EXPECT_EQ(choice.Append(Letter('a'), true).text, "a");
  EXPECT_EQ(choice.Append(Letter('b'), false).text, "");
  EXPECT_EQ(choice.Finish().text, "");
  EXPECT_EQ(choice.tokens(), 2);
  EXPECT_FALSE(choice.stopped());
  EXPECT_FALSE(choice.stop_string().has_value());
}

}  // namespace
}  // namespace baton::router
