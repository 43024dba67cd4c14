// A request's life over a (prefill, decode) pair: what happens in which order, and what every loss leads to.
#include <gtest/gtest.h>

#include "tests/router/flow_text.h"

namespace baton::router {
namespace {

using State = RequestFlow::State;
constexpr WorkerId kP{0, 1}, kQ{1, 2}, kD{2, 3}, kE{3, 4};
constexpr uint32_t kPrompt = 100, kShort = 8;

FlowLimits Limits() {
  FlowLimits limits;
  limits.max_attempts = 3;
  limits.failover_wait = std::chrono::milliseconds(50);
  return limits;
}

LegKey Key(uint32_t attempt, uint32_t epoch) { return {"r", attempt, epoch}; }

ReserveResult Granted(uint32_t cached = 0) { return {.grant = {"wire", "ticket", cached}}; }

PrefillResult First(std::vector<int32_t> tokens, FinishReason finish = FinishReason::kNone) {
  PrefillResult result;
  for (uint32_t i = 0; i < tokens.size(); ++i)
    result.first.push_back({i, tokens[i], std::nullopt, finish, std::nullopt});
  return result;
}

absl::Status Gone() { return absl::UnavailableError("gone"); }

/// Brought to `state` on (P, D).
RequestFlow FlowIn(State state, uint32_t choices = 1) {
  RequestFlow flow("r", kPrompt, choices, Limits(), kStart);
  flow.Start();
  flow.PairChosen(kP, kD, kShort, kStart);
  if (state != State::kReserving) flow.Reserved(Key(1, 0), Granted(), kStart);
  if (state == State::kStreaming) flow.PrefillEnded(Key(1, 1), First(std::vector<int32_t>(choices, 7)), false, kStart);
  flow.TakeActions();
  EXPECT_EQ(flow.state(), state);
  return flow;
}

TEST(RequestFlowPair, ReserveThenPrefillThenFirstTokensThenAttach) {
  RequestFlow flow("r", kPrompt, 2, Limits(), kStart);
  flow.Start();
  EXPECT_EQ(Taken(flow), "pick");
  flow.PairChosen(kP, kD, kShort, kStart);
  EXPECT_EQ(Taken(flow), "reserve w2 r/1");
  flow.Reserved(Key(1, 0), Granted(48), kStart);
  EXPECT_EQ(Taken(flow), "prefill w0 1 e1");
  flow.PrefillPiece(Key(1, 1), "scores", kStart);
  PrefillResult result = First({7, 9});
  result.cached_tokens = 16;
  flow.PrefillEnded(Key(1, 1), result, true, kStart);
  EXPECT_EQ(Taken(flow),
            "prompt logprobs scores, admitted 16, prompt logprobs  last, emit c0 7, emit c1 9, attach w2 g1 @101 "
            "ticket e1 +7 +9");
  EXPECT_EQ(flow.state(), State::kStreaming);
}

TEST(RequestFlowPair, AShortUncachedRestIsComputedOnDecodeAtOnce) {
  RequestFlow flow = FlowIn(State::kReserving);
  flow.Reserved(Key(1, 0), Granted(96), kStart);
  EXPECT_EQ(Taken(flow), "attach w2 g1 @100 ticket e0");
  EXPECT_EQ(flow.state(), State::kAttached);
}

TEST(RequestFlowPair, AChoiceThatEndedWithItsFirstTokenIsNotDecoded) {
  RequestFlow flow = FlowIn(State::kPrefilling, 2);
  PrefillResult result = First({7, 9});
  result.first[0].finish = FinishReason::kLength;
  flow.PrefillEnded(Key(1, 1), result, false, kStart);
  EXPECT_EQ(Taken(flow), "admitted 0, emit c0 7, end c0 2, emit c1 9, attach w2 g1 @101 ticket e1 -7 +9");
}

TEST(RequestFlowPair, WhenEveryChoiceEndedTheTicketIsGivenBack) {
  RequestFlow flow = FlowIn(State::kPrefilling, 2);
  flow.PrefillEnded(Key(1, 1), First({7, 9}, FinishReason::kLength), false, kStart);
  EXPECT_EQ(Taken(flow), "admitted 0, cancel leg w2 1 e0, emit c0 7, end c0 2, emit c1 9, end c1 2, complete");
  EXPECT_EQ(flow.state(), State::kDone);
}

TEST(RequestFlowPair, ALostPrefillLegGoesToAnotherWorkerAtTheNextEpoch) {
  RequestFlow flow = FlowIn(State::kPrefilling);
  flow.PrefillEnded(Key(1, 1), {Gone()}, false, kStart);
  EXPECT_EQ(Taken(flow), "cancel leg w0 1 e1, pick prefill");
  flow.PrefillChosen(kQ, kStart);
  EXPECT_EQ(Taken(flow), "prefill w1 1 e2");
  flow.PrefillEnded(Key(1, 1), First({5}), false, kStart);
  EXPECT_EQ(Taken(flow), "") << "the old leg's answer counts no more";
  flow.PrefillEnded(Key(1, 2), First({7}), false, kStart);
  EXPECT_EQ(Taken(flow), "admitted 0, emit c0 7, attach w2 g1 @101 ticket e2 +7");
}

TEST(RequestFlowPair, WithoutAnotherPrefillWorkerDecodeComputesThePrompt) {
  RequestFlow flow = FlowIn(State::kPrefilling);
  flow.PrefillEnded(Key(1, 1), {Gone()}, false, kStart);
  flow.TakeActions();
  flow.PrefillChosen(std::nullopt, kStart);
  EXPECT_EQ(Taken(flow), "attach w2 g1 @100 ticket e0");
}

TEST(RequestFlowPair, APromptThatNoPrefillWorkerCanDoEndsOnDecodeInTheEnd) {
  RequestFlow flow = FlowIn(State::kPrefilling);
  for (uint32_t epoch = 1; epoch < 3; ++epoch) {
    flow.PrefillEnded(Key(1, epoch), {Gone()}, false, kStart);
    flow.PrefillChosen(WorkerId{0, 10 + epoch}, kStart);
  }
  flow.TakeActions();
  flow.PrefillEnded(Key(1, 3), {Gone()}, false, kStart);
  EXPECT_EQ(Taken(flow), "cancel leg w0 1 e3, attach w2 g1 @100 ticket e0");
}

TEST(RequestFlowPair, NoRoomOnDecodeTriesAnotherDecodeWorker) {
  RequestFlow flow = FlowIn(State::kPrefilling);
  PrefillResult no_room{absl::ResourceExhaustedError("no room")};
  no_room.no_room = true;
  flow.PrefillEnded(Key(1, 1), no_room, false, kStart);
  EXPECT_EQ(Taken(flow), "cancel leg w0 1 e1, cancel leg w2 1 e0, pick again");
  EXPECT_EQ(flow.excluded(), std::vector<WorkerId>{kD});
  flow.PairChosen(kP, kE, kShort, kStart);
  EXPECT_EQ(Taken(flow), "reserve w3 r/2");
}

TEST(RequestFlowPair, ARefusedReserveTriesAnotherAndABadOneFails) {
  RequestFlow flow = FlowIn(State::kReserving);
  flow.Reserved(Key(1, 0), {absl::ResourceExhaustedError("full"), 100, 5}, kStart);
  EXPECT_EQ(Taken(flow), "pick again");
  flow.PairChosen(kP, kE, kShort, kStart);
  flow.TakeActions();
  flow.Reserved(Key(2, 0), {absl::InvalidArgumentError("too long")}, kStart);
  EXPECT_EQ(Taken(flow), "fail INVALID_ARGUMENT");
}

TEST(RequestFlowPair, DecodeLostBeforeAttachCancelsThePrefillLeg) {
  RequestFlow flow = FlowIn(State::kPrefilling);
  flow.WorkerLost(kD, Gone(), kStart);
  EXPECT_EQ(Taken(flow), "cancel leg w0 1 e1, cancel leg w2 1 e0, pick again");
}

TEST(RequestFlowPair, ASecondAttachNamesTheSameTicket) {
  RequestFlow flow = FlowIn(State::kStreaming);
  RelayNews late{.leg_id = "r", .attach_gen = 1, .position = kPrompt + 2, .token_ids = {9}};
  flow.News(late, kStart);
  EXPECT_EQ(Taken(flow), "attach w2 g2 @101 c0 ticket e1");
  flow.ClientGone();
  EXPECT_EQ(Taken(flow), "cancel leg w0 1 e1, cancel leg w2 1 e0, cancel w2 r g2");
}

TEST(RequestFlowPair, DecodeLostAfterTheFirstTokenIsAMigration) {
  RequestFlow flow = FlowIn(State::kStreaming, 2);
  flow.WorkerLost(kD, Gone(), kStart);
  EXPECT_EQ(Taken(flow), "cancel leg w0 1 e1, cancel leg w2 1 e0, cancel w2 r g1, pick again");
  EXPECT_TRUE(flow.started_output());
  flow.WorkerChosen(kE, kStart);
  EXPECT_EQ(Taken(flow), "attach w3 g2 @101 c0, attach w3 g3 @101 c1");
}

TEST(RequestFlowPair, AClientThatLeavesCancelsWhatThereIs) {
  for (const auto& [state, actions] :
       {std::pair{State::kReserving, "cancel leg w2 1 e0"},
        std::pair{State::kPrefilling, "cancel leg w0 1 e1, cancel leg w2 1 e0"},
        std::pair{State::kStreaming, "cancel leg w0 1 e1, cancel leg w2 1 e0, cancel w2 r g1"}}) {
    RequestFlow flow = FlowIn(state);
    flow.ClientGone();
    EXPECT_EQ(Taken(flow), actions);
    EXPECT_EQ(flow.state(), State::kDone);
  }
}

TEST(RequestFlowPair, AnswersThatBelongToNothingChangeNothing) {
  RequestFlow flow = FlowIn(State::kStreaming);
  flow.Reserved(Key(1, 0), Granted(), kStart);
  flow.PrefillEnded(Key(1, 1), First({3}), false, kStart);
  flow.PrefillChosen(kQ, kStart);
  flow.PrefillPiece(Key(1, 1), "late", kStart);
  EXPECT_EQ(Taken(flow), "");
  RequestFlow reserving = FlowIn(State::kReserving);
  reserving.Reserved(Key(9, 0), Granted(), kStart);
  EXPECT_EQ(Taken(reserving), "");
}

}  // namespace
}  // namespace baton::router
