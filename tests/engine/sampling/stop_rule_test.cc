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

}  // namespace
}  // namespace baton::engine
