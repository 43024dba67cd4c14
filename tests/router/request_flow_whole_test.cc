// A beam search in RequestFlow: nothing is the client's before all is there, a prefill leg's candidates are for all
// choices, and after a loss the search begins again.
#include <gtest/gtest.h>

#include "tests/router/flow_start.h"

namespace baton::router {
namespace {

constexpr WorkerId kWholePrefill{0, 1}, kWholeDecode{2, 3};

FlowLimits Whole() {
  FlowLimits limits = Limits();
  limits.whole = true;
  limits.first_token_timeout = Ms(100);
  return limits;
}

RequestFlow Begun() {
  RequestFlow flow("r", kPrompt, 2, Whole(), kStart);
  flow.Start();
  flow.WorkerChosen(kA, kStart);
  EXPECT_EQ(Taken(flow), "pick, attach w0 g1 @10");
  return flow;
}

TEST(RequestFlowWhole, TokensAreHeldUntilEveryChoiceHasEnded) {
  RequestFlow flow = Begun();
  flow.News(Tokens(1, 0, 10, {5, 6}, FinishReason::kStop), kStart);
  flow.News(Tokens(1, 1, 10, {7}), kStart);
  EXPECT_EQ(Taken(flow), "");
  EXPECT_FALSE(flow.started_output());
  flow.News(Tokens(1, 1, 11, {8}, FinishReason::kLength), kStart);
  EXPECT_EQ(Taken(flow), "emit c0 5 6 stop, end c0 1, emit c1 7, emit c1 8, end c1 2, complete");
}

TEST(RequestFlowWhole, WhatIsHeldIsPaidForWithCredit) {
  RequestFlow flow = Begun();
  flow.News(Tokens(1, 1, 10, {1, 2, 3, 4}), kStart);
  EXPECT_EQ(Taken(flow), "credit r c1 +4") << "half of the 8 that it had";
}

TEST(RequestFlowWhole, WhatALostWorkerSentIsDroppedAndTheSearchBeginsAgain) {
  RequestFlow flow = Begun();
  flow.News(Tokens(1, 0, 10, {5, 6}, FinishReason::kStop), kStart);
  flow.News(Tokens(1, 1, 10, {7}), kStart);
  flow.WorkerLost(kA, absl::UnavailableError("gone"), kStart);
  EXPECT_EQ(Taken(flow), "cancel w0 r g1, pick again");
  EXPECT_EQ(flow.tokens_to_prefill(), kPrompt);
  flow.WorkerChosen(kB, kStart);
  EXPECT_EQ(Taken(flow), "attach w1 g2 @10");
  flow.News(Tokens(2, 1, 10, {7, 8}, FinishReason::kLength), kStart);
  flow.News(Tokens(2, 0, 10, {5, 6}, FinishReason::kStop), kStart);
  EXPECT_EQ(Taken(flow), "emit c1 7 8, end c1 2, emit c0 5 6 stop, end c0 1, complete");
  EXPECT_EQ(flow.migrations(), 0u);
}

TEST(RequestFlowWhole, AMissingMessageBeginsTheSearchAgain) {
  RequestFlow flow = Begun();
  flow.News(Tokens(1, 0, 12, {5}), kStart);
  EXPECT_EQ(Taken(flow), "cancel w0 r g1, pick again");
}

TEST(RequestFlowWhole, OnePrefillLegHasCandidatesForAllChoices) {
  RequestFlow flow("r", kPrompt, 2, Whole(), kStart);
  flow.Start();
  flow.PairChosen(kWholePrefill, kWholeDecode, 0, kStart);
  flow.Reserved({"r", 1, 0}, {.grant = {"wire", "ticket", 0}}, kStart);
  EXPECT_EQ(Taken(flow), "pick, reserve w2 r/1, prefill w0 1 e1");
  PrefillResult result;
  result.first.push_back({0, 7, PositionLogprobs{{7, -1, 1}, {{7, -1, 1}, {9, -2, 2}}}, FinishReason::kNone, {}});
  flow.PrefillEnded({"r", 1, 1}, result, false, kStart);
  EXPECT_EQ(Taken(flow), "admitted 0, attach w2 g1 @10 ticket e1 +7") << "the candidates are no token of the answer";
  flow.News(Tokens(1, 0, 10, {9}, FinishReason::kLength), kStart);
  flow.News(Tokens(1, 1, 10, {7}, FinishReason::kLength), kStart);
  EXPECT_EQ(Taken(flow), "emit c0 9, end c0 2, emit c1 7, end c1 2, complete");
}

TEST(RequestFlowWhole, TheLimitOfTheFirstTokenIsNotForAnswersThatComeWhole) {
  RequestFlow flow = Begun();
  flow.Timer(kStart + Ms(500));
  EXPECT_EQ(flow.state(), State::kAttached);
  flow.Timer(kStart + Ms(10000));
  EXPECT_EQ(Taken(flow), "cancel w0 r g1, fail DEADLINE_EXCEEDED");
}

}  // namespace
}  // namespace baton::router
