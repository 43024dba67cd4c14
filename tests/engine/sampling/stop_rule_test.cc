#include "engine/sampling/stop_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace baton::engine {
namespace {

SamplingParams Params() {
  SamplingParams p;
  p.eos_token_ids = {2};
  p.stop_token_ids = {7};
  p.max_tokens = 5;
  return p;
}

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

TEST(ValidateSampling, EachBrokenFieldIsNamed) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto broken = [](auto&& change, const char* name) {
    SamplingParams p = Params();
    EXPECT_TRUE(ValidateSampling(p, 100).ok());
    change(p);
    const absl::Status s = ValidateSampling(p, 100);
    EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_NE(s.message().find(name), std::string::npos) << s;
  };
  broken([&](auto& p) { p.temperature = nan; }, "temperature");
  broken([&](auto& p) { p.temperature = -1; }, "temperature");
  broken([&](auto& p) { p.top_p = 0; }, "top_p");
  broken([&](auto& p) { p.top_p = nan; }, "top_p");
  broken([&](auto& p) { p.top_k = -2; }, "top_k");
  broken([&](auto& p) { p.min_p = 1.5f; }, "min_p");
  broken([&](auto& p) { p.repetition_penalty = 0; }, "repetition_penalty");
  broken([&](auto& p) { p.repetition_penalty = INFINITY; }, "repetition_penalty");
  broken([&](auto& p) { p.presence_penalty = 3; }, "presence_penalty");
  broken([&](auto& p) { p.frequency_penalty = -3; }, "frequency_penalty");
  broken([&](auto& p) { p.logit_bias = {{100, 1.0f}}; }, "logit_bias");
  broken([&](auto& p) { p.logit_bias = {{1, nan}}; }, "logit_bias");
  broken([&](auto& p) { p.allowed_token_ids = {-1}; }, "allowed_token_ids");
  broken([&](auto& p) { p.stop_token_ids = {100}; }, "stop_token_ids");
  broken([&](auto& p) { p.max_tokens = 0; }, "max_tokens");
  broken([&](auto& p) { p.min_tokens = 6; }, "min_tokens");
  broken([&](auto& p) { p.n = 0; }, "n must");
}

TEST(ValidateSampling, PenaltiesMayBeAsGreatAsTheApiAllows) {
  for (const float most : {-2.0f, 2.0f}) {
    SamplingParams p = Params();
    p.presence_penalty = p.frequency_penalty = most;
    EXPECT_TRUE(ValidateSampling(p, 100).ok()) << most;
  }
}

}  // namespace
}  // namespace baton::engine
