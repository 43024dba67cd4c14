#include "engine/sampling/stop_rule.h"

#include <gtest/gtest.h>

#include "tests/engine/sampling/params.h"

namespace baton::engine {
namespace {

TEST(StopRule, EosStopsWithoutAStopToken) {
  const StopDecision d = DecideStop(Params(), 2, 1, 10, 100);
  EXPECT_EQ(d.reason, FinishReason::kStop);
  EXPECT_FALSE(d.stop_token.has_value());
}

TEST(StopRule, StopTokenStopsAndIsNamedEvenWithIgnoreEos) {
  SamplingParams p = Params();
  p.ignore_eos = true;
  EXPECT_EQ(DecideStop(p, 2, 1, 10, 100).reason, FinishReason::kNone);
  const StopDecision d = DecideStop(p, 7, 1, 10, 100);
  EXPECT_EQ(d.reason, FinishReason::kStop);
  EXPECT_EQ(d.stop_token, 7);
}

TEST(StopRule, EosEndsAnAnswerWithAGrammarEvenWithIgnoreEos) {
  SamplingParams p = Params();
  p.ignore_eos = true;
  p.grammar = std::make_shared<Grammar>(Grammar{GrammarKind::kRegex, "a"});
  EXPECT_EQ(DecideStop(p, 2, 1, 10, 100).reason, FinishReason::kStop);
}

TEST(StopRule, LengthIsMaxTokensOrTheContext) {
  EXPECT_EQ(DecideStop(Params(), 1, 4, 10, 100).reason, FinishReason::kNone);
  EXPECT_EQ(DecideStop(Params(), 1, 5, 10, 100).reason, FinishReason::kLength);
  EXPECT_EQ(DecideStop(Params(), 1, 1, 100, 100).reason, FinishReason::kLength);
}

TEST(StopRule, AStopOnTheLastTokenIsAStop) {
  EXPECT_EQ(DecideStop(Params(), 2, 5, 10, 100).reason, FinishReason::kStop);
}

TEST(StopRule, MinTokensBansStopsUntilThatManyTokensAreOut) {
  SamplingParams p = Params();
  p.min_tokens = 2;
  EXPECT_EQ(BannedBeforeMinTokens(p, 0), (std::vector<int32_t>{2, 7}));
  EXPECT_EQ(BannedBeforeMinTokens(p, 1), (std::vector<int32_t>{2, 7}));
  EXPECT_TRUE(BannedBeforeMinTokens(p, 2).empty());
  EXPECT_EQ(DecideStop(p, 2, 1, 10, 100).reason, FinishReason::kNone);
  EXPECT_EQ(DecideStop(p, 2, 2, 10, 100).reason, FinishReason::kStop);
}

TEST(StopRule, ABadWordsLastTokenIsBannedWhereTheOthersCameJustBefore) {
  SamplingParams p;
  p.bad_words = {7, -1, 1, 2, 3, -1, 2, 9, -1};
  const auto banned = [&](std::vector<int32_t> output, std::vector<int32_t> others = {}) {
    BanEndsOfBadWords(p, output, others);
    return others;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(banned({}), (Ids{7})) << "a word of one token, at once; a longer one has nothing before it";
  EXPECT_EQ(banned({1}), (Ids{7}));
  EXPECT_EQ(banned({1, 2}), (Ids{3, 7, 9})) << "two words go on here";
  EXPECT_EQ(banned({1, 2, 5}), (Ids{7})) << "in a row only";
  EXPECT_EQ(banned({5, 5, 1, 2}), (Ids{3, 7, 9}));
  EXPECT_EQ(banned({2}, {4, 7}), (Ids{4, 7, 9})) << "beside those that are banned already, each once";
}

TEST(StopRule, AnyTokenLeftAsksTheAllowedOnesOrTheVocabulary) {
  EXPECT_TRUE(AnyTokenLeft({}, {0, 1}, 3));
  EXPECT_FALSE(AnyTokenLeft({}, {0, 1, 2}, 3));
  EXPECT_TRUE(AnyTokenLeft({1, 2}, {1}, 3));
  EXPECT_FALSE(AnyTokenLeft({1, 2}, {0, 1, 2}, 9));
}

TEST(StopRule, BadWordsThatAreNoneAreRefusedWithTheNumbers) {
  const auto wrong = [](std::vector<int32_t> words) {
    SamplingParams p;
    p.bad_words = std::move(words);
    return std::string(ValidateSampling(p, 10).message());
  };
  EXPECT_EQ(wrong({1, 2, -1, 3, -1}), "");
  EXPECT_EQ(wrong({-1}), "bad_words has a word of 0 tokens");
  EXPECT_EQ(wrong({1, -1, -1}), "bad_words has a word of 0 tokens");
  EXPECT_EQ(wrong({1, 2}), "the last of bad_words has no end (-1)");
  EXPECT_EQ(wrong({10, -1}), "bad_words has token id 10, the vocabulary has 10");
  EXPECT_EQ(wrong({-7, -1}), "bad_words has token id -7, the vocabulary has 10");
}

}  // namespace
}  // namespace baton::engine
