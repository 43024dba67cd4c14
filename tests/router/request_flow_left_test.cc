// A flow that leaves a worker: what it takes along to the next one, and what not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/router/flow_pair.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;

/// Streams on worker A, of 8 tokens of credit; two tokens have come.
RequestFlow Streams() { return FlowIn(State::kStreaming); }

std::string FailureOf(RequestFlow& flow) {
  for (const FlowAction& action : flow.TakeActions()) {
    if (const auto* fail = std::get_if<Fail>(&action)) return std::string(fail->status.message());
  }
  return "";
}

/// An answer of two tokens goes on.
const std::pair<const char*, void (*)(RequestFlow&)> kWaysToAnotherLeg[] = {
    {"another worker",
     [](RequestFlow& flow) {
       flow.WorkerLost(kA, Gone(), kStart);
       flow.WorkerChosen(kB, kStart);
     }},
    {"the same, after a message was lost",
     [](RequestFlow& flow) { flow.News(Tokens(1, 0, kPrompt + 5, {9}), kStart); }}};

TEST(RequestFlowLeft, CreditOfALegCountsFromItsOwnBeginning) {
  for (const auto& [what, attach_again] : kWaysToAnotherLeg) {
    RequestFlow flow = Streams();
    flow.Consumed(0, 3);
    EXPECT_EQ(Taken(flow), "") << "half of the credit is given at once";
    attach_again(flow);
    EXPECT_THAT(Taken(flow), HasSubstr("g2 @12 c0")) << what;
    flow.Consumed(0, 3);
    EXPECT_EQ(Taken(flow), "") << what << ": its Attach gave it all there is";
    flow.Consumed(0, 1);
    EXPECT_EQ(Taken(flow), "credit r c0 +4") << what;
  }
}

TEST(RequestFlowLeft, ALegThatHasAllItsCreditIsWaitedForUntilItIsIdle) {
  for (const auto& [what, attach_again] : kWaysToAnotherLeg) {
    FlowLimits limits = Limits();
    limits.credit_tokens = 2, limits.idle_token_timeout = Ms(60);
    RequestFlow flow("r", kPrompt, 1, limits, kStart);
    flow.Start();
    flow.WorkerChosen(kA, kStart);
    flow.News(Tokens(1, 0, kPrompt, {7, 8}), kStart);
    attach_again(flow);
    flow.News(Tokens(2, 0, kPrompt + 2, {9}), kStart);
    flow.TakeActions();
    flow.Timer(kStart + Ms(60));
    EXPECT_THAT(Taken(flow), HasSubstr("pick again")) << what << ": it may send one more and does not";
  }
}

TEST(RequestFlowLeft, WhoWaitedForAWorkerStillEndsAtTheTotalTime) {
  RequestFlow fresh = FlowIn(State::kWaiting);
  fresh.Timer(kStart + Ms(20));
  fresh.TakeActions();
  RequestFlow pair = fresh;
  fresh.WorkerChosen(kB, kStart + Ms(20));
  EXPECT_EQ(Taken(fresh, true), "attach w1 g2 @10, arm +10000");
  pair.PairChosen(kP, kD, kShort, kStart + Ms(20));
  EXPECT_EQ(Taken(pair, true), "reserve w2 r/2, arm +10000");

  RequestFlow streams = Streams();
  streams.WorkerLost(kA, Gone(), kStart);
  streams.NoWorker(Gone(), 0, true, kStart);
  streams.Timer(kStart + Ms(20));
  streams.TakeActions();
  streams.WorkerChosen(kB, kStart + Ms(20));
  EXPECT_EQ(Taken(streams, true), "attach w1 g2 @12 c0, arm +10000");
}

TEST(RequestFlowLeft, WhileALegThatWasIdleWaitsForAnotherWorkerTheTotalTimeRuns) {
  FlowLimits limits = Limits();
  limits.idle_token_timeout = Ms(60);
  RequestFlow flow("r", kPrompt, 1, limits, kStart);
  flow.Start();
  flow.WorkerChosen(kA, kStart);
  flow.News(Tokens(1, 0, kPrompt, {7}), kStart);
  flow.TakeActions();
  flow.Timer(kStart + Ms(60));
  EXPECT_EQ(Taken(flow, true), "cancel w0 r g1, arm +10000, pick again") << "the choice may wait for the retry budget";
  EXPECT_EQ(flow.worker(), WorkerId{}) << "it is on none";
}

TEST(RequestFlowLeft, TheLastChoiceOfALegThatOthersHaveLeftOrEndedCancelsAllOfIt) {
  RequestFlow flow("r", kPrompt, 3, Limits(), kStart);
  flow.Start(), flow.WorkerChosen(kA, kStart);
  for (const uint32_t index : {0, 1, 2}) flow.News(Tokens(1, index, kPrompt, {7}), kStart);
  flow.TakeActions();
  flow.ChoiceStopped(0);
  EXPECT_THAT(Taken(flow), HasSubstr(" r g1 c0, "));
  flow.News(Tokens(1, 1, kPrompt + 1, {8}, FinishReason::kLength), kStart);
  flow.TakeActions();
  flow.ChoiceStopped(2);
  EXPECT_THAT(Taken(flow), HasSubstr(" r g1, ")) << "not of choice 2 alone";
}

TEST(RequestFlowLeft, AChoiceThatEndedWithoutATokenIsNotAskedForAgain) {
  RequestFlow flow("r", kPrompt, 2, Limits(), kStart);
  flow.Start(), flow.WorkerChosen(kA, kStart);
  flow.News(Tokens(1, 0, kPrompt, {}, FinishReason::kLength), kStart);
  flow.WorkerLost(kA, Gone(), kStart);
  flow.TakeActions();
  flow.WorkerChosen(kB, kStart);
  EXPECT_EQ(Taken(flow), StrCat("attach w", kB.index, " g2 @", kPrompt, " c1"));
}

TEST(RequestFlowLeft, OfAnEndedChoiceNothingIsComputedAgain) {
  RequestFlow flow("r", kPrompt, 2, Limits(), kStart);
  flow.Start(), flow.WorkerChosen(kA, kStart);
  flow.News(Tokens(1, 0, kPrompt, {7, 8, 9}, FinishReason::kLength), kStart);
  flow.News(Tokens(1, 1, kPrompt, {7}), kStart);
  flow.WorkerLost(kA, Gone(), kStart);
  EXPECT_EQ(flow.tokens_to_prefill(), kPrompt + 1) << "what the other one has";
}

TEST(RequestFlowLeft, AnErrorWithoutAStatusIsAnError) {
  RequestFlow flow = FlowIn(State::kAttached);
  for (uint64_t gen = 1; flow.state() != State::kDone && gen < 5; ++gen) {
    flow.News(Error(gen, absl::OkStatus()), kStart);
    if (flow.state() == State::kPicking) flow.TakeActions(), flow.WorkerChosen(kA, kStart);
  }
  EXPECT_EQ(FailureOf(flow), "the worker reported an error without a message");
}

TEST(RequestFlowLeft, AClientHearsWhereInItsAnswerTheWorkerWasLost) {
  for (const bool streams : {false, true}) {
    FlowLimits limits = Limits();
    limits.max_attempts = 1;
    RequestFlow flow("r", kPrompt, 1, limits, kStart);
    flow.Start();
    flow.WorkerChosen(kA, kStart);
    if (streams) flow.News(Tokens(1, 0, kPrompt, {7}), kStart);
    flow.WorkerLost(kA, Gone(), kStart);
    EXPECT_THAT(FailureOf(flow), HasSubstr(streams ? "lost in the middle of the answer" : "before the first token"));
  }
}

// ---- of a pair

TEST(RequestFlowLeft, AfterALongPrefillTheDecodeWorkerHasItsWholeIdleTime) {
  RequestFlow flow = PairIn(State::kPrefilling);
  const TimePoint late = kStart + std::chrono::seconds(5);  // longer than a worker may be idle between two tokens
  flow.PrefillEnded(Key(1, 1), First({7}), false, late);
  EXPECT_THAT(Taken(flow, true), HasSubstr("arm +7000"));
  flow.Timer(late + Ms(1999));
  EXPECT_EQ(Taken(flow), "");
  flow.Timer(late + Ms(2000));
  EXPECT_THAT(Taken(flow), HasSubstr("pick again"));
}

TEST(RequestFlowLeft, AWaitThatAPairHasEndedBeginsAnewTheNextTime) {
  RequestFlow flow("r", kPairPrompt, 1, PairLimits(), kStart);
  flow.Start();
  flow.NoWorker(Gone(), 0, true, kStart);
  ASSERT_EQ(flow.state(), State::kWaiting);
  flow.Timer(kStart + Ms(40));
  flow.PairChosen(kP, kD, kShort, kStart + Ms(40));
  flow.WorkerLost(kD, Gone(), kStart + Ms(60));
  flow.NoWorker(Gone(), 0, true, kStart + Ms(60));
  EXPECT_EQ(flow.state(), State::kWaiting) << "50 ms from now on";
}

TEST(RequestFlowLeft, APrefillWorkerThatFailedIsNotAskedAgain) {
  RequestFlow flow = PairIn(State::kPrefilling);
  flow.PrefillEnded(Key(1, 1), PrefillResult{Gone()}, false, kStart);
  EXPECT_EQ(Taken(flow), "cancel leg w0 1 e1, pick prefill");
  EXPECT_EQ(flow.excluded_prefill(), std::vector<WorkerId>{kP});
}

TEST(RequestFlowLeft, ARequestIsAdmittedOnce) {
  RequestFlow flow = PairIn(State::kPrefilling);
  flow.PrefillEnded(Key(1, 1), First({7}), false, kStart);
  EXPECT_THAT(Taken(flow), HasSubstr("admitted 0"));
  RelayNews news = Tokens(1, 0, kPairPrompt + 1, {8});
  news.accepted = true, news.cached_tokens = 100;
  flow.News(news, kStart);
  EXPECT_EQ(Taken(flow), "emit c0 8") << "what the decode worker has cached is the handoff's";
}

TEST(RequestFlowLeft, WhoHasFoundRoomFailsForOtherReasons) {
  RequestFlow flow = PairIn(State::kPrefilling);
  flow.PrefillEnded(Key(1, 1), NoRoom(), false, kStart);
  flow.PairChosen(kP, kE, kShort, kStart);
  flow.Reserved(Key(2, 0), Granted(), kStart);
  flow.PrefillEnded(Key(2, 1), First({7}), false, kStart);
  flow.TakeActions();
  flow.Timer(kStart + std::chrono::seconds(20));
  EXPECT_THAT(Taken(flow), HasSubstr("fail DEADLINE_EXCEEDED"));
}

}  // namespace
}  // namespace baton::router
