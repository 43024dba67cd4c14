// A request's life over a (prefill, decode) pair: what happens in which order, and what every loss leads to.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>

#include "tests/router/flow_pair.h"
#include "tests/state_table.h"

namespace baton::router {
namespace {

// Every event in every state of a flow over a pair. "Choosing": the prefill leg was lost, another worker is looked for.
// "Attached": the decode worker computes the prompt. "Again": the decode worker was lost in the prefill leg.
constexpr std::array kTableStates = {"Again",    "Reserving", "Prefilling", "Choosing",
                                     "Attached", "Streaming", "Waiting",    "Done"};

RequestFlow FlowAt(const std::string& state) {
  if (state == "Reserving") return PairIn(State::kReserving);
  if (state == "Streaming") return PairIn(State::kStreaming);
  RequestFlow flow = PairIn(State::kPrefilling);
  if (state == "Choosing" || state == "Attached") flow.PrefillEnded(Key(1, 1), {Gone()}, false, kStart);
  if (state == "Attached") flow.PrefillChosen(std::nullopt, kStart);
  if (state == "Again" || state == "Waiting") flow.WorkerLost(kD, Gone(), kStart);
  if (state == "Waiting") flow.NoWorker(Gone(), 0, true, kStart);
  if (state == "Done") flow.ClientGone();
  flow.TakeActions();
  return flow;
}

std::string NameOf(State state) {
  constexpr std::array kNames = {"Picking", "Attached", "Streaming", "Waiting", "Done", "Reserving", "Prefilling"};
  return kNames.at(static_cast<size_t>(state));
}

RelayNews News(std::vector<int32_t> tokens, uint64_t position, FinishReason finish = FinishReason::kNone) {
  return {.attach_gen = 1, .position = position, .token_ids = std::move(tokens), .finish = finish};
}

using Apply = std::function<void(RequestFlow&)>;
const std::pair<std::string, Apply> kPairEvents[] = {
    {"pair chosen", [](RequestFlow& f) { f.PairChosen(kQ, kE, kShort, kStart); }},
    {"worker chosen", [](RequestFlow& f) { f.WorkerChosen(kE, kStart); }},
    {"no worker", [](RequestFlow& f) { f.NoWorker(Gone(), 0, true, kStart); }},
    {"reserved", [](RequestFlow& f) { f.Reserved(Key(1, 0), Granted(), kStart); }},
    {"reserved, all cached", [](RequestFlow& f) { f.Reserved(Key(1, 0), Granted(96), kStart); }},
    {"reserve refused",
     [](RequestFlow& f) { f.Reserved(Key(1, 0), {absl::ResourceExhaustedError("full"), 9, 9}, kStart); }},
    {"reserve invalid", [](RequestFlow& f) { f.Reserved(Key(1, 0), {absl::InvalidArgumentError("bad")}, kStart); }},
    {"reserved, old attempt", [](RequestFlow& f) { f.Reserved(Key(0, 0), Granted(), kStart); }},
    {"piece", [](RequestFlow& f) { f.PrefillPiece(Key(1, 1), "scores", kStart); }},
    {"piece, old epoch", [](RequestFlow& f) { f.PrefillPiece(Key(1, 0), "scores", kStart); }},
    {"prefilled", [](RequestFlow& f) { f.PrefillEnded(Key(1, 1), First({7}), false, kStart); }},
    {"prefilled and over",
     [](RequestFlow& f) { f.PrefillEnded(Key(1, 1), First({7}, FinishReason::kLength), false, kStart); }},
    {"prefilled, two tokens", [](RequestFlow& f) { f.PrefillEnded(Key(1, 1), First({7, 8}), false, kStart); }},
    {"prefilled, old epoch", [](RequestFlow& f) { f.PrefillEnded(Key(1, 0), First({7}), false, kStart); }},
    {"prefill lost", [](RequestFlow& f) { f.PrefillEnded(Key(1, 1), {Gone()}, false, kStart); }},
    {"prefill no room", [](RequestFlow& f) { f.PrefillEnded(Key(1, 1), NoRoom(), false, kStart); }},
    {"prefill invalid",
     [](RequestFlow& f) { f.PrefillEnded(Key(1, 1), {absl::InvalidArgumentError("bad")}, false, kStart); }},
    {"prefill late",
     [](RequestFlow& f) { f.PrefillEnded(Key(1, 1), {absl::DeadlineExceededError("late")}, false, kStart); }},
    {"prefill chosen", [](RequestFlow& f) { f.PrefillChosen(kQ, kStart); }},
    {"no prefill", [](RequestFlow& f) { f.PrefillChosen(std::nullopt, kStart); }},
    {"tokens", [](RequestFlow& f) { f.News(News({5}, kPairPrompt + f.output(0).size()), kStart); }},
    {"last token",
     [](RequestFlow& f) { f.News(News({5}, kPairPrompt + f.output(0).size(), FinishReason::kLength), kStart); }},
    {"gap", [](RequestFlow& f) { f.News(News({5}, kPairPrompt + 77), kStart); }},
    {"aborted", [](RequestFlow& f) { f.News(News({}, 0, FinishReason::kAbort), kStart); }},
    {"lost D", [](RequestFlow& f) { f.WorkerLost(kD, Gone(), kStart); }},
    {"lost another", [](RequestFlow& f) { f.WorkerLost(kE, Gone(), kStart); }},
    {"timer now", [](RequestFlow& f) { f.Timer(kStart); }},
    {"leg lapsed",
     [](RequestFlow& f) {
       RelayNews news;
       news.attach_gen = 1, news.finish = FinishReason::kError, news.error = absl::AbortedError("nobody renewed it");
       f.News(std::move(news), kStart);
     }},
    {"ticket lapsed",
     [](RequestFlow& f) { f.Reserved({"r", 1, 0}, {absl::AbortedError("nobody renewed it")}, kStart); }},
    {"prefill leg lapsed",
     [](RequestFlow& f) { f.PrefillEnded({"r", 1, 1}, {absl::AbortedError("nobody renewed it")}, false, kStart); }},
    {"timer, silence", [](RequestFlow& f) { f.Timer(kStart + std::chrono::seconds(2)); }},
    {"timer, over", [](RequestFlow& f) { f.Timer(kStart + std::chrono::seconds(20)); }},
    {"client gone", [](RequestFlow& f) { f.ClientGone(); }},
    {"stop string", [](RequestFlow& f) { f.ChoiceStopped(0); }},
    {"consumed", [](RequestFlow& f) { f.Consumed(0, 256); }},
};

constexpr const char* kPairTable = R"(
pair chosen | →Reserving reserve w3 r/2 | = | = | = | = | = | = | =
worker chosen | →Attached attach w3 g1 @100 | = | = | = | = | = | = | =
no worker | →Waiting | = | = | = | = | = | = | =
reserved | = | →Prefilling prefill w0 1 e1 | = | = | = | = | = | =
reserved, all cached | = | →Attached attach w2 g1 @100 ticket e0 | = | = | = | = | = | =
reserve refused | = | →Picking pick again | = | = | = | = | = | =
reserve invalid | = | →Done fail INVALID_ARGUMENT | = | = | = | = | = | =
reserved, old attempt | = | = | = | = | = | = | = | =
piece | = | = | prompt logprobs scores | = | = | = | = | =
piece, old epoch | = | = | = | = | = | = | = | =
prefilled | = | = | →Streaming admitted 0, emit c0 7, attach w2 g1 @101 ticket e1 +7 | = | = | = | = | =
prefilled and over | = | = | →Done admitted 0, cancel leg w2 1 e0, emit c0 7, end c0 2, complete | = | = | = | = | =
prefilled, two tokens | = | = | cancel leg w0 1 e1, pick prefill | = | = | = | = | =
prefilled, old epoch | = | = | = | = | = | = | = | =
prefill lost | = | = | cancel leg w0 1 e1, pick prefill | = | = | = | = | =
prefill no room | = | = | →Picking cancel leg w0 1 e1, cancel leg w2 1 e0 for now, pick | = | = | = | = | =
prefill invalid | = | = | →Done cancel leg w0 1 e1, cancel leg w2 1 e0, fail INVALID_ARGUMENT | = | = | = | = | =
prefill late | = | = | →Done cancel leg w0 1 e1, cancel leg w2 1 e0, fail DEADLINE_EXCEEDED | = | = | = | = | =
prefill chosen | = | = | = | prefill w1 1 e2 | = | = | = | =
no prefill | = | = | = | →Attached attach w2 g1 @100 ticket e0 | = | = | = | =
tokens | = | = | = | = | →Streaming emit c0 5 | emit c0 5 | = | =
last token | = | = | = | = | →Done emit c0 5, end c0 2, complete | →Done emit c0 5, end c0 2, complete | = | =
gap | = | = | = | = | →Picking cancel leg w2 1 e0, cancel w2 r g1, pick again | attach w2 g2 @101 c0 ticket e1 | = | =
aborted | = | = | = | = | →Picking cancel leg w2 1 e0, cancel w2 r g1, pick again | →Picking cancel leg w0 1 e1, cancel leg w2 1 e0, cancel w2 r g1, pick again | = | =
lost D | = | →Picking cancel leg w2 1 e0, pick again | →Picking cancel leg w0 1 e1, cancel leg w2 1 e0, pick again | →Picking cancel leg w2 1 e0, pick again | →Picking cancel leg w2 1 e0, cancel w2 r g1, pick again | →Picking cancel leg w0 1 e1, cancel leg w2 1 e0, cancel w2 r g1, pick again | = | =
lost another | = | = | = | = | = | = | = | =
timer now | = | = | = | = | = | = | →Picking pick again | =
timer, silence | = | = | = | = | = | →Picking cancel leg w0 1 e1, cancel leg w2 1 e0, cancel w2 r g1, pick again | →Picking pick again | =
leg lapsed | = | = | = | = | →Picking cancel leg w2 1 e0, cancel w2 r g1, pick again | →Picking cancel leg w0 1 e1, cancel leg w2 1 e0, cancel w2 r g1, pick again | = | =
ticket lapsed | = | →Picking pick again | = | = | = | = | = | =
prefill leg lapsed | = | = | →Picking cancel leg w0 1 e1, cancel leg w2 1 e0, pick again | = | = | = | = | =
timer, over | →Done fail DEADLINE_EXCEEDED | →Done cancel leg w2 1 e0, fail DEADLINE_EXCEEDED | →Done cancel leg w0 1 e1, cancel leg w2 1 e0, fail DEADLINE_EXCEEDED | →Done cancel leg w2 1 e0, fail DEADLINE_EXCEEDED | →Done cancel leg w2 1 e0, cancel w2 r g1, fail DEADLINE_EXCEEDED | →Done cancel leg w0 1 e1, cancel leg w2 1 e0, cancel w2 r g1, fail DEADLINE_EXCEEDED | →Done fail DEADLINE_EXCEEDED | =
client gone | →Done | →Done cancel leg w2 1 e0 | →Done cancel leg w0 1 e1, cancel leg w2 1 e0 | →Done cancel leg w2 1 e0 | →Done cancel leg w2 1 e0, cancel w2 r g1 | →Done cancel leg w0 1 e1, cancel leg w2 1 e0, cancel w2 r g1 | →Done | =
stop string | →Done end c0 1, complete | →Done cancel leg w2 1 e0, end c0 1, complete | →Done cancel leg w0 1 e1, cancel leg w2 1 e0, end c0 1, complete | →Done cancel leg w2 1 e0, end c0 1, complete | →Done cancel w2 r g1 c0, end c0 1, complete | →Done cancel w2 r g1 c0, end c0 1, complete | →Done end c0 1, complete | =
consumed | = | = | = | = | = | credit r c0 +256 | = | =
)";

TEST(RequestFlowPair, EveryEventInEveryStateDoesWhatItsCellSays) {
  ExpectEveryCell(kPairTable, kTableStates, kPairEvents, [](const auto&, const std::string& state, const Apply& apply) {
    RequestFlow flow = FlowAt(state);
    const State before = flow.state();
    apply(flow);
    return CellOf(NameOf(before), NameOf(flow.state()), Taken(flow));
  });
}

TEST(RequestFlowPair, ReserveThenPrefillThenFirstTokensThenAttach) {
  RequestFlow flow("r", kPairPrompt, 2, PairLimits(), kStart);
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
  RequestFlow flow = PairIn(State::kReserving);
  flow.Reserved(Key(1, 0), Granted(96), kStart);
  EXPECT_EQ(Taken(flow), "attach w2 g1 @100 ticket e0");
  EXPECT_EQ(flow.state(), State::kAttached);
}

TEST(RequestFlowPair, TheUncachedRestMayBeAsLongAsSaid) {
  for (const uint32_t cached : {kPairPrompt - kShort, kPairPrompt - kShort - 1}) {
    RequestFlow flow = PairIn(State::kReserving);
    flow.Reserved(Key(1, 0), Granted(cached), kStart);
    EXPECT_EQ(Taken(flow), cached + kShort == kPairPrompt ? "attach w2 g1 @100 ticket e0" : "prefill w0 1 e1");
  }
}

TEST(RequestFlowPair, TheAnswerOfAnEarlierAttemptsLegIsNotTheLaterOnes) {
  RequestFlow flow = PairIn(State::kPrefilling);
  flow.WorkerLost(kD, Gone(), kStart);
  flow.PairChosen(kP, kE, kShort, kStart);
  flow.Reserved(Key(2, 0), Granted(), kStart);
  EXPECT_EQ(flow.state(), State::kPrefilling);
  flow.TakeActions();
  flow.PrefillPiece(Key(1, 1), "scores", kStart);
  flow.PrefillEnded(Key(1, 1), First({5}), false, kStart);
  EXPECT_EQ(Taken(flow), "");
  flow.PrefillEnded(Key(2, 1), First({7}), false, kStart);
  EXPECT_EQ(Taken(flow), "admitted 0, emit c0 7, attach w3 g1 @101 ticket e1 +7");
}

TEST(RequestFlowPair, OneOfSeveralChoicesIsAttachedAgainWithoutTheTicketOfAll) {
  RequestFlow flow = PairIn(State::kStreaming, 2);
  RelayNews late{.attach_gen = 1, .index = 1, .position = kPairPrompt + 2, .token_ids = {9}};
  flow.News(late, kStart);
  EXPECT_EQ(Taken(flow), "cancel w2 r g1 c1, attach w2 g2 @101 c1");
}

TEST(RequestFlowPair, AChoiceThatEndedWithItsFirstTokenIsNotDecoded) {
  RequestFlow flow = PairIn(State::kPrefilling, 2);
  PrefillResult result = First({7, 9});
  result.first[0].finish = FinishReason::kLength;
  flow.PrefillEnded(Key(1, 1), result, false, kStart);
  EXPECT_EQ(Taken(flow), "admitted 0, emit c0 7, end c0 2, emit c1 9, attach w2 g1 @101 ticket e1 -7 +9");
}

TEST(RequestFlowPair, AChoiceThatMayNotEvenBeginHasNoToken) {
  RequestFlow flow = PairIn(State::kPrefilling);
  PrefillResult result = First({0}, FinishReason::kStop);
  result.first[0].nothing_allowed = true;
  flow.PrefillEnded(Key(1, 1), result, false, kStart);
  EXPECT_EQ(Taken(flow), "admitted 0, cancel leg w2 1 e0, end c0 1 nothing allowed, complete");
}

TEST(RequestFlowPair, WhenEveryChoiceEndedTheTicketIsGivenBack) {
  RequestFlow flow = PairIn(State::kPrefilling, 2);
  flow.PrefillEnded(Key(1, 1), First({7, 9}, FinishReason::kLength), false, kStart);
  EXPECT_EQ(Taken(flow), "admitted 0, cancel leg w2 1 e0, emit c0 7, end c0 2, emit c1 9, end c1 2, complete");
  EXPECT_EQ(flow.state(), State::kDone);
}

TEST(RequestFlowPair, ALostPrefillLegGoesToAnotherWorkerAtTheNextEpoch) {
  RequestFlow flow = PairIn(State::kPrefilling);
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
  RequestFlow flow = PairIn(State::kPrefilling);
  flow.PrefillEnded(Key(1, 1), {Gone()}, false, kStart);
  flow.TakeActions();
  flow.PrefillChosen(std::nullopt, kStart);
  EXPECT_EQ(Taken(flow), "attach w2 g1 @100 ticket e0");
}

TEST(RequestFlowPair, APromptThatNoPrefillWorkerCanDoEndsOnDecodeInTheEnd) {
  RequestFlow flow = PairIn(State::kPrefilling);
  for (uint32_t epoch = 1; epoch < 3; ++epoch) {
    flow.PrefillEnded(Key(1, epoch), {Gone()}, false, kStart);
    flow.PrefillChosen(WorkerId{0, 10 + epoch}, kStart);
  }
  flow.TakeActions();
  flow.PrefillEnded(Key(1, 3), {Gone()}, false, kStart);
  EXPECT_EQ(Taken(flow), "cancel leg w0 1 e3, attach w2 g1 @100 ticket e0");
}

TEST(RequestFlowPair, NoRoomOnDecodeTriesAnotherDecodeWorker) {
  RequestFlow flow = PairIn(State::kPrefilling);
  flow.PrefillEnded(Key(1, 1), NoRoom(), false, kStart);
  EXPECT_EQ(Taken(flow), "cancel leg w0 1 e1, cancel leg w2 1 e0 for now, pick");
  EXPECT_EQ(flow.excluded(), std::vector<WorkerId>{kD});
  flow.PairChosen(kP, kE, kShort, kStart);
  EXPECT_EQ(Taken(flow), "reserve w3 r/2");
}

/// The prefill leg of `attempt` found no room on D, and there is no other: D is asked again.
void AskAgainAfterNoRoom(RequestFlow& flow, uint32_t attempt) {
  flow.PrefillEnded(Key(attempt, 1), NoRoom(), false, kStart);
  flow.NoWorker(Gone(), 0, /*soon=*/false, kStart);
  EXPECT_EQ(flow.state(), State::kWaiting);
  EXPECT_TRUE(flow.excluded().empty());
  flow.TakeActions();
  flow.Timer(kStart + std::chrono::milliseconds(20));
  EXPECT_EQ(Taken(flow), "pick") << "not a retry: no budget pays for it";
  flow.PairChosen(kP, kD, kShort, kStart);
  flow.Reserved(Key(attempt + 1, 0), Granted(), kStart);
  EXPECT_EQ(Taken(flow), StrCat("reserve w2 r/", attempt + 1, ", prefill w0 ", attempt + 1, " e1"));
}

TEST(RequestFlowPair, TheOnlyDecodeWorkerIsAQueueWhenItIsFull) {
  RequestFlow flow = PairIn(State::kPrefilling);
  for (uint32_t attempt = 1; attempt <= 5; ++attempt) AskAgainAfterNoRoom(flow, attempt);
  flow.PrefillEnded(Key(6, 1), First({7}), false, kStart);
  EXPECT_EQ(Taken(flow), "admitted 0, emit c0 7, attach w2 g1 @101 ticket e1 +7");
}

TEST(RequestFlowPair, WaitingForRoomEndsWithTheRequestsTime) {
  for (const bool said_late : {false, true}) {
    RequestFlow flow = PairIn(State::kPrefilling);
    AskAgainAfterNoRoom(flow, 1);
    if (said_late) {  // by the prefill worker, which stops a little earlier
      flow.PrefillEnded(Key(2, 1), {absl::DeadlineExceededError("late")}, false, kStart);
    } else {
      flow.Timer(kStart + std::chrono::seconds(20));
    }
    EXPECT_EQ(Taken(flow), "cancel leg w0 2 e1, cancel leg w2 2 e0, fail RESOURCE_EXHAUSTED");
  }
}

TEST(RequestFlowPair, ARequestThatHasFoundRoomIsLateForAnotherReason) {
  RequestFlow flow = PairIn(State::kPrefilling);
  flow.PrefillEnded(Key(1, 1), NoRoom(), false, kStart);
  flow.WorkerChosen(kE, kStart);
  flow.TakeActions();
  flow.Timer(kStart + std::chrono::seconds(20));
  EXPECT_EQ(Taken(flow), "cancel w3 r g1, fail DEADLINE_EXCEEDED");
}

TEST(RequestFlowPair, AFullWorkersReservationsAreWaitedForToo) {
  RequestFlow flow = PairIn(State::kPrefilling);
  flow.PrefillEnded(Key(1, 1), NoRoom(), false, kStart);
  flow.PairChosen(kP, kE, kShort, kStart);
  flow.TakeActions();
  flow.Reserved(Key(2, 0), {absl::ResourceExhaustedError("full"), 100, 5}, kStart);
  EXPECT_EQ(Taken(flow), "pick");
  flow.NoWorker(Gone(), 0, /*soon=*/false, kStart);
  EXPECT_EQ(flow.state(), State::kWaiting);
  EXPECT_TRUE(flow.excluded().empty());
}

TEST(RequestFlowPair, ALostWorkerStaysExcludedAndCountsWhenOthersAreFull) {
  RequestFlow flow = PairIn(State::kPrefilling);
  for (uint32_t attempt = 1; attempt <= 4; ++attempt) AskAgainAfterNoRoom(flow, attempt);
  flow.WorkerLost(kD, Gone(), kStart);
  EXPECT_EQ(Taken(flow), "cancel leg w0 5 e1, cancel leg w2 5 e0, pick again") << "one of three attempts";
  flow.PairChosen(kP, kE, kShort, kStart);
  flow.Reserved(Key(6, 0), Granted(), kStart);
  flow.PrefillEnded(Key(6, 1), NoRoom(), false, kStart);
  flow.NoWorker(Gone(), 0, /*soon=*/false, kStart);
  EXPECT_EQ(flow.excluded(), std::vector<WorkerId>{kD});
  flow.Timer(kStart + std::chrono::seconds(1));
  EXPECT_EQ(flow.excluded(), std::vector<WorkerId>{kD}) << "the full ones are there: the lost one is not needed";
}

TEST(RequestFlowPair, ATicketExpiresWithItsRequest) {
  for (const auto& [left, expiry_ms] :
       {std::pair{std::chrono::seconds(20), 20000u}, {std::chrono::hours(1200), 3600000u}}) {
    FlowLimits limits = PairLimits();
    limits.total_timeout = left;
    RequestFlow flow("r", kPairPrompt, 1, limits, kStart);
    flow.Start();
    flow.PairChosen(kP, kD, kShort, kStart);
    std::vector<FlowAction> actions;
    ASSERT_TRUE(flow.TakeActions(actions));
    uint32_t seen = 0;
    for (const FlowAction& action : actions) {
      if (const auto* send = std::get_if<SendTo>(&action)) seen = std::get<ReserveLeg>(send->order).expiry_ms;
    }
    EXPECT_EQ(seen, expiry_ms);
  }
}

TEST(RequestFlowPair, WhenTheFullWorkerHasGoneNobodyIsThere) {
  RequestFlow flow = PairIn(State::kPrefilling);
  flow.PrefillEnded(Key(1, 1), NoRoom(), false, kStart);
  for (int turn = 0; turn < 2; ++turn) {
    flow.NoWorker(Gone(), 0, /*soon=*/true, kStart);
    EXPECT_EQ(flow.state(), State::kWaiting) << "it may come back";
    flow.Timer(kStart + std::chrono::milliseconds(20));
  }
  flow.TakeActions();
  flow.NoWorker(Gone(), 0, /*soon=*/false, kStart);
  EXPECT_EQ(Taken(flow), "fail UNAVAILABLE");
}

TEST(RequestFlowPair, ARefusedReserveTriesAnotherAndABadOneFails) {
  RequestFlow flow = PairIn(State::kReserving);
  flow.Reserved(Key(1, 0), {absl::ResourceExhaustedError("full"), 100, 5}, kStart);
  EXPECT_EQ(Taken(flow), "pick again");
  flow.PairChosen(kP, kE, kShort, kStart);
  flow.TakeActions();
  flow.Reserved(Key(2, 0), {absl::InvalidArgumentError("too long")}, kStart);
  EXPECT_EQ(Taken(flow), "fail INVALID_ARGUMENT");
}

TEST(RequestFlowPair, DecodeLostBeforeAttachCancelsThePrefillLeg) {
  RequestFlow flow = PairIn(State::kPrefilling);
  flow.WorkerLost(kD, Gone(), kStart);
  EXPECT_EQ(Taken(flow), "cancel leg w0 1 e1, cancel leg w2 1 e0, pick again");
}

TEST(RequestFlowPair, ASecondAttachNamesTheSameTicket) {
  RequestFlow flow = PairIn(State::kStreaming);
  RelayNews late{.attach_gen = 1, .position = kPairPrompt + 2, .token_ids = {9}};
  flow.News(late, kStart);
  EXPECT_EQ(Taken(flow), "attach w2 g2 @101 c0 ticket e1");
  flow.ClientGone();
  EXPECT_EQ(Taken(flow), "cancel leg w0 1 e1, cancel leg w2 1 e0, cancel w2 r g2");
}

TEST(RequestFlowPair, DecodeLostAfterTheFirstTokenIsAMigration) {
  RequestFlow flow = PairIn(State::kStreaming, 2);
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
    RequestFlow flow = PairIn(state);
    flow.ClientGone();
    EXPECT_EQ(Taken(flow), actions);
    EXPECT_EQ(flow.state(), State::kDone);
  }
}

TEST(RequestFlowPair, AnswersThatBelongToNothingChangeNothing) {
  RequestFlow flow = PairIn(State::kStreaming);
  flow.Reserved(Key(1, 0), Granted(), kStart);
  flow.PrefillEnded(Key(1, 1), First({3}), false, kStart);
  flow.PrefillChosen(kQ, kStart);
  flow.PrefillPiece(Key(1, 1), "late", kStart);
  EXPECT_EQ(Taken(flow), "");
  RequestFlow reserving = PairIn(State::kReserving);
  reserving.Reserved(Key(9, 0), Granted(), kStart);
  EXPECT_EQ(Taken(reserving), "");
}

}  // namespace
}  // namespace baton::router
