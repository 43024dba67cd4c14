#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <random>

#include "tests/router/flow_start.h"
#include "tests/state_table.h"

namespace baton::router {
namespace {

constexpr std::array kStates = {"Picking", "Attached", "Streaming", "Waiting", "Done"};
using Apply = std::function<void(RequestFlow&)>;
const std::pair<std::string, Apply> kEvents[] = {
    {"leg lapsed", [](RequestFlow& f) { f.News(Error(1, absl::AbortedError("nobody renewed it")), kStart); }},
    {"chosen B", [](RequestFlow& f) { f.WorkerChosen(kB, kStart); }},
    {"no worker soon", [](RequestFlow& f) { f.NoWorker(absl::UnavailableError("none"), 0, true, kStart); }},
    {"no worker", [](RequestFlow& f) { f.NoWorker(absl::UnavailableError("none"), 0, false, kStart); }},
    {"tokens", [](RequestFlow& f) { f.News(Tokens(1, 0, kPrompt + f.output(0).size(), {5}), kStart); }},
    {"last token",
     [](RequestFlow& f) { f.News(Tokens(1, 0, kPrompt + f.output(0).size(), {5}, FinishReason::kLength), kStart); }},
    {"wrong position", [](RequestFlow& f) { f.News(Tokens(1, 0, kPrompt + 77, {5}), kStart); }},
    {"end after a gap", [](RequestFlow& f) { f.News(Tokens(1, 0, kPrompt + 77, {}, FinishReason::kStop), kStart); }},
    {"said twice", [](RequestFlow& f) { f.News(Tokens(1, 0, kPrompt + f.output(0).size() - 1, {8}), kStart); }},
    {"said twice, with the end",
     [](RequestFlow& f) { f.News(Tokens(1, 0, kPrompt + f.output(0).size() - 1, {8}, FinishReason::kStop), kStart); }},
    {"half said twice", [](RequestFlow& f) { f.News(Tokens(1, 0, kPrompt + f.output(0).size() - 1, {8, 9}), kStart); }},
    {"old generation", [](RequestFlow& f) { f.News(Tokens(99, 0, kPrompt, {5}), kStart); }},
    {"refused", [](RequestFlow& f) { f.News(Error(1, absl::ResourceExhaustedError("full")), kStart); }},
    {"invalid", [](RequestFlow& f) { f.News(Error(1, absl::InvalidArgumentError("bad")), kStart); }},
    {"lost A", [](RequestFlow& f) { f.WorkerLost(kA, absl::UnavailableError("gone"), kStart); }},
    {"lost B", [](RequestFlow& f) { f.WorkerLost(kB, absl::UnavailableError("gone"), kStart); }},
    {"timer now", [](RequestFlow& f) { f.Timer(kStart); }},
    {"timer late", [](RequestFlow& f) { f.Timer(kStart + Ms(10000)); }},
    {"client gone", [](RequestFlow& f) { f.ClientGone(); }},
    {"stop string", [](RequestFlow& f) { f.ChoiceStopped(0); }},
    {"consumed", [](RequestFlow& f) { f.Consumed(0, 4); }},
};

// event | one cell per state
constexpr const char* kTable = R"(
leg lapsed | = | →Picking cancel w0 r g1, pick again | →Picking cancel w0 r g1, pick again | = | =
chosen B       | →Attached attach w1 g1 @10 | = | = | = | =
no worker soon | →Waiting | = | = | = | =
no worker      | →Done fail UNAVAILABLE | = | = | = | =
tokens         | = | →Streaming emit c0 5 | emit c0 5 | = | =
last token     | = | →Done emit c0 5, end c0 2, complete | →Done emit c0 5, end c0 2, complete | = | =
wrong position | = | →Picking cancel w0 r g1, pick again | attach w0 g2 @12 c0 | = | =
end after a gap | = | →Picking cancel w0 r g1, pick again | attach w0 g2 @12 c0 | = | =
said twice     | = | = | = | = | =
said twice, with the end | = | →Picking cancel w0 r g1, pick again | attach w0 g2 @12 c0 | = | =
half said twice | = | →Picking cancel w0 r g1, pick again | attach w0 g2 @12 c0 | = | =
old generation | = | = | = | = | =
refused        | = | →Picking cancel w0 r g1, pick again | →Picking cancel w0 r g1, pick again | = | =
invalid        | = | →Done cancel w0 r g1, fail INVALID_ARGUMENT | →Done cancel w0 r g1, fail INVALID_ARGUMENT | = | =
lost A         | = | →Picking cancel w0 r g1, pick again | →Picking cancel w0 r g1, pick again | = | =
lost B         | = | = | = | = | =
timer now      | = | = | = | →Picking pick again | =
timer late     | →Done fail DEADLINE_EXCEEDED | →Done cancel w0 r g1, fail DEADLINE_EXCEEDED | →Done cancel w0 r g1, fail DEADLINE_EXCEEDED | →Done fail DEADLINE_EXCEEDED | =
client gone    | →Done | →Done cancel w0 r g1 | →Done cancel w0 r g1 | →Done | =
stop string    | →Done end c0 1, complete | →Done cancel w0 r g1 c0, end c0 1, complete | →Done cancel w0 r g1 c0, end c0 1, complete | →Done end c0 1, complete | =
consumed       | = | = | credit r c0 +4 | = | =
)";

// A missing event would be a hole in the machine.
TEST(RequestFlow, EveryEventInEveryStateDoesWhatItsCellSays) {
  ExpectEveryCell(kTable, kStates, kEvents, [](const auto&, const std::string& state, const Apply& apply) {
    const auto at = std::find(kStates.begin(), kStates.end(), state) - kStates.begin();
    RequestFlow flow = FlowIn(static_cast<State>(at));
    apply(flow);
    return CellOf(state, kStates.at(static_cast<size_t>(flow.state())), Taken(flow));
  });
}

TEST(RequestFlow, OnlyWhatAnotherWorkerMayDoBetterIsTriedAgain) {
  for (const auto code : {absl::StatusCode::kUnavailable, absl::StatusCode::kResourceExhausted,
                          absl::StatusCode::kAborted, absl::StatusCode::kDataLoss}) {
    RequestFlow flow = FlowIn(State::kAttached);
    flow.News(Error(1, absl::Status(code, "x")), kStart);
    EXPECT_EQ(Taken(flow), "cancel w0 r g1, pick again") << absl::StatusCodeToString(code);
  }
  for (const auto code : {absl::StatusCode::kInvalidArgument, absl::StatusCode::kFailedPrecondition,
                          absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kInternal}) {
    RequestFlow flow = FlowIn(State::kAttached);
    flow.News(Error(1, absl::Status(code, "x")), kStart);
    EXPECT_EQ(flow.state(), State::kDone) << absl::StatusCodeToString(code);
  }
  RequestFlow flow = FlowIn(State::kAttached);
  flow.News(Tokens(1, 0, kPrompt, {}, FinishReason::kAbort), kStart);
  EXPECT_EQ(Taken(flow), "cancel w0 r g1, pick again") << "nobody here asked for the abort";
}

TEST(RequestFlow, NewsOfAnEndedOrUnknownChoiceIsDropped) {
  RequestFlow flow = FlowIn(State::kAttached, 2);
  flow.News(Tokens(1, 0, kPrompt, {5}, FinishReason::kLength), kStart);
  flow.TakeActions();
  flow.News(Error(1, absl::UnavailableError("late")), kStart);
  flow.News(Tokens(1, 0, kPrompt + 1, {6}), kStart);
  flow.News(Tokens(1, 2, kPrompt, {6}), kStart);
  EXPECT_EQ(Taken(flow), "");
  EXPECT_EQ(flow.state(), State::kStreaming);
}

TEST(RequestFlow, OnlyATokenThatStoppedTheAnswerIsNoText) {
  for (const auto stop_token_id : {std::optional<int32_t>(6), std::optional<int32_t>(7), std::optional<int32_t>()}) {
    RequestFlow flow = FlowIn(State::kAttached);
    RelayNews news = Tokens(1, 0, kPrompt, {5, 6}, FinishReason::kStop);
    news.stop_token_id = stop_token_id;
    flow.News(news, kStart);
    EXPECT_EQ(Taken(flow).starts_with("emit c0 5 6 stop"), stop_token_id != 7) << "the model's own end has no id";
  }
  RequestFlow flow = FlowIn(State::kAttached);
  RelayNews news = Tokens(1, 0, kPrompt, {5, 6}, FinishReason::kStop);
  news.nothing_allowed = true;
  flow.News(news, kStart);
  EXPECT_TRUE(Taken(flow).starts_with("emit c0 5 6, ")) << "no token could be drawn behind the last";
}

TEST(RequestFlow, AChoiceWithoutAnAllowedTokenEndsAndSaysSo) {
  RequestFlow flow = FlowIn(State::kStreaming);
  RelayNews news = Tokens(1, 0, kPrompt + 2, {}, FinishReason::kStop);
  news.nothing_allowed = true;
  flow.News(news, kStart);
  EXPECT_EQ(Taken(flow), "end c0 1 nothing allowed, complete");
}

TEST(RequestFlow, ANewRequestWaitsForAWorkerThatMayComeBackWithoutPayingForARetry) {
  RequestFlow flow = FlowIn(State::kPicking);
  flow.NoWorker(absl::UnavailableError("none"), 7, true, kStart);
  EXPECT_EQ(flow.state(), State::kWaiting);
  flow.Timer(kStart + Ms(20));
  EXPECT_EQ(Taken(flow), "pick");
  flow.NoWorker(absl::UnavailableError("none"), 7, true, kStart + Ms(50));
  EXPECT_EQ(Taken(flow), "fail UNAVAILABLE") << "the wait is over";
}

TEST(RequestFlow, EachLossHasItsOwnWaitForAnotherWorker) {
  RequestFlow flow = FlowIn(State::kWaiting);
  flow.Timer(kStart + Ms(20));
  flow.WorkerChosen(kB, kStart + Ms(20));
  flow.WorkerLost(kB, absl::UnavailableError("gone"), kStart + Ms(1000));
  flow.NoWorker(absl::UnavailableError("none"), 0, true, kStart + Ms(1000));
  EXPECT_EQ(flow.state(), State::kWaiting) << "the first wait was over long ago";
}

TEST(RequestFlow, ARetryBeforeTheFirstTokenStartsOver) {
  RequestFlow flow = FlowIn(State::kAttached, 2);
  flow.WorkerLost(kA, absl::UnavailableError("gone"), kStart);
  EXPECT_EQ(Taken(flow), "cancel w0 r g1, pick again");
  EXPECT_EQ(flow.excluded(), std::vector<WorkerId>{kA});
  flow.WorkerChosen(kB, kStart);
  EXPECT_EQ(Taken(flow), "attach w1 g2 @10") << "one leg for both choices again";
  EXPECT_EQ(flow.migrations(), 0u);
}

TEST(RequestFlow, AMigrationContinuesEachUnfinishedChoiceAtItsOwnPosition) {
  RequestFlow flow = FlowIn(State::kAttached, 3);
  flow.News(Tokens(1, 0, kPrompt, {1, 2, 3}), kStart);
  flow.News(Tokens(1, 1, kPrompt, {4}, FinishReason::kStop), kStart);
  flow.TakeActions();
  flow.WorkerLost(kA, absl::UnavailableError("gone"), kStart);
  EXPECT_EQ(Taken(flow), "cancel w0 r g1, pick again");
  EXPECT_EQ(flow.tokens_to_prefill(), kPrompt + 3);
  flow.WorkerChosen(kB, kStart);
  EXPECT_EQ(Taken(flow), "attach w1 g2 @13 c0, attach w1 g3 @10 c2");
  EXPECT_EQ(flow.LegId(0), "r#0");
  EXPECT_EQ(flow.migrations(), 1u);
  flow.News(Tokens(1, 0, kPrompt + 3, {9}), kStart);
  EXPECT_EQ(Taken(flow), "") << "the old worker's late tokens are dropped";
  flow.News(Tokens(2, 0, kPrompt + 3, {9}, FinishReason::kLength), kStart);
  flow.News(Tokens(3, 2, kPrompt, {8}, FinishReason::kLength), kStart);
  EXPECT_EQ(Taken(flow), "emit c0 9, end c0 2, emit c2 8, end c2 2, complete");
}

TEST(RequestFlow, WhereTokensAreMissingTheChoiceIsAttachedOnceMore) {
  RequestFlow flow = FlowIn(State::kStreaming);
  flow.News(Tokens(1, 0, kPrompt + 3, {9}), kStart);
  EXPECT_EQ(Taken(flow), "attach w0 g2 @12 c0");
  flow.News(Tokens(1, 0, kPrompt + 2, {9}), kStart);
  EXPECT_EQ(Taken(flow), "") << "the first attach is fenced";
  flow.News(Tokens(2, 0, kPrompt + 2, {9, 4}, FinishReason::kLength), kStart);
  EXPECT_EQ(Taken(flow), "emit c0 9 4, end c0 2, complete");
  EXPECT_EQ(flow.migrations(), 0u);
}

TEST(RequestFlow, AChoiceAmongOthersIsAttachedOnceMoreByItself) {
  RequestFlow flow = FlowIn(State::kAttached, 2);
  flow.News(Tokens(1, 0, kPrompt, {1, 2}), kStart);
  flow.News(Tokens(1, 1, kPrompt, {3}), kStart);
  flow.TakeActions();
  flow.News(Tokens(1, 1, kPrompt + 2, {4}), kStart);
  EXPECT_EQ(Taken(flow), "cancel w0 r g1 c1, attach w0 g2 @11 c1");
  EXPECT_TRUE(flow.separate_legs());
  flow.News(Tokens(1, 0, kPrompt + 2, {5}), kStart);
  flow.News(Tokens(2, 1, kPrompt + 1, {6}), kStart);
  EXPECT_EQ(Taken(flow), "emit c0 5, emit c1 6") << "the other choice goes on";
}

/// Else a worker that missed a choice's cancel would keep its sequence as long as the request lasts, or longer.
TEST(RequestFlow, TheLastChoiceThatLeavesASharedLegEndsTheLeg) {
  const auto left = [](auto&& last) {
    RequestFlow flow = FlowIn(State::kAttached, 3);
    for (uint32_t c : {0u, 1u, 2u}) flow.News(Tokens(1, c, kPrompt, {1}), kStart);
    flow.News(Tokens(1, 0, kPrompt + 2, {4}), kStart);
    flow.News(Tokens(1, 1, kPrompt + 2, {4}), kStart);
    flow.TakeActions();
    last(flow);
    return Taken(flow);
  };
  EXPECT_EQ(left([](RequestFlow& f) { f.News(Tokens(1, 2, kPrompt + 2, {4}), kStart); }),
            "cancel w0 r g1, attach w0 g4 @11 c2");
  EXPECT_EQ(left([](RequestFlow& f) { f.ChoiceStopped(2); }), "cancel w0 r g1, end c2 1");
  EXPECT_EQ(left([](RequestFlow& f) { f.News(Tokens(1, 2, kPrompt + 1, {4}, FinishReason::kLength), kStart); }),
            "emit c2 4, end c2 2, cancel w0 r g1");
}

TEST(RequestFlow, AWorkerThatKeepsLosingTokensIsLeft) {
  RequestFlow flow = FlowIn(State::kStreaming);
  for (uint64_t gen = 1; gen <= 3; ++gen) {
    flow.News(Tokens(gen, 0, kPrompt + 9, {9}), kStart);
    EXPECT_EQ(Taken(flow), StrCat("attach w0 g", gen + 1, " @12 c0"));
  }
  flow.News(Tokens(4, 0, kPrompt + 9, {9}), kStart);
  EXPECT_EQ(Taken(flow), "cancel w0 r g4, pick again");
}

TEST(RequestFlow, CreditAndCancelOfAMigratedChoiceNameItsOwnLeg) {
  RequestFlow flow = FlowIn(State::kAttached, 2);
  flow.News(Tokens(1, 0, kPrompt, {1}), kStart);
  flow.WorkerLost(kA, absl::UnavailableError("gone"), kStart);
  flow.WorkerChosen(kB, kStart);
  flow.TakeActions();
  flow.Consumed(0, 3);
  EXPECT_EQ(Taken(flow), "") << "less than half of the credit";
  flow.Consumed(0, 2);
  EXPECT_EQ(Taken(flow), "credit r#0 c0 +5");
  flow.ChoiceStopped(0);
  EXPECT_EQ(Taken(flow), "cancel w1 r#0 g2, end c0 1");
  flow.ClientGone();
  EXPECT_EQ(Taken(flow), "cancel w1 r#1 g3");
}

TEST(RequestFlow, AttemptsAreBounded) {
  RequestFlow flow = FlowIn(State::kAttached);
  for (int attempt = 2; attempt <= 3; ++attempt) {
    flow.News(Error(static_cast<uint64_t>(attempt) - 1, absl::UnavailableError("draining")), kStart);
    flow.WorkerChosen(attempt == 2 ? kB : kA, kStart);
    EXPECT_EQ(flow.attempts(), static_cast<uint32_t>(attempt));
  }
  flow.TakeActions();
  flow.News(Error(3, absl::UnavailableError("draining")), kStart);
  EXPECT_EQ(Taken(flow), "cancel w0 r g3, fail UNAVAILABLE") << "a refusal is no lost worker";
}

TEST(RequestFlow, TheFirstCauseIsToldWhenNobodyElseCanTakeIt) {
  FlowLimits limits = Limits();
  limits.failover_wait = Duration::zero();
  RequestFlow flow("r", kPrompt, 1, limits, kStart);
  flow.Start();
  flow.WorkerChosen(kA, kStart);
  flow.WorkerLost(kA, absl::UnavailableError("killed"), kStart);
  flow.TakeActions();
  flow.NoWorker(absl::UnavailableError("no other worker"), 0, true, kStart);
  auto actions = flow.TakeActions();
  ASSERT_EQ(actions.size(), 1u);
  const Fail& fail = std::get<Fail>(actions[0]);
  EXPECT_TRUE(fail.worker_lost);
  EXPECT_NE(fail.status.message().find("killed"), absl::string_view::npos) << fail.status;
}

TEST(RequestFlow, PromptLogprobsComeOnceAndTheStopTokenIsMarked) {
  RequestFlow flow = FlowIn(State::kAttached);
  RelayNews piece = Tokens(1, 0, kPrompt, {});
  piece.accepted = true;
  piece.cached_tokens = 3;
  piece.prompt_logprobs = "ab";
  flow.News(piece, kStart);
  piece.prompt_logprobs_last = true;
  flow.News(piece, kStart);
  flow.News(piece, kStart);
  EXPECT_EQ(Taken(flow), "admitted 3, prompt logprobs ab, prompt logprobs ab last");
  RelayNews last = Tokens(1, 0, kPrompt, {4, 2}, FinishReason::kStop);
  last.stop_token_id = 2;
  flow.News(last, kStart);
  EXPECT_EQ(Taken(flow), "emit c0 4 2 stop, end c0 1, complete");
}

// Whatever happens in whatever order: tokens come out once and in order, and after the end nothing comes.
TEST(RequestFlow, RandomEventsKeepEveryInvariant) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    FlowLimits limits = Limits();
    limits.max_attempts = 1 + static_cast<int32_t>(random() % 5);
    const uint32_t choices = 1 + random() % 3;
    RequestFlow flow("r", kPrompt, choices, limits, kStart);
    std::vector<std::vector<int32_t>> seen(choices);
    std::vector<bool> ended(choices);
    std::map<uint64_t, std::pair<WorkerId, std::optional<uint32_t>>> attached;  // by attach_gen
    WorkerId target = kA;
    TimePoint now = kStart;
    bool over = false;
    uint64_t last_gen = 0;
    flow.Start();
    for (int step = 0; step < 60; ++step) {
      for (const FlowAction& action : flow.TakeActions()) {
        ASSERT_FALSE(over) << "after the end: " << Describe(action);
        const auto* sent = std::get_if<SendTo>(&action);
        if (const auto* a = sent != nullptr ? std::get_if<AttachLeg>(&sent->order) : nullptr) {
          ASSERT_GT(a->attach_gen, last_gen);
          last_gen = a->attach_gen;
          attached[a->attach_gen] = {sent->worker, a->choices.empty() ? std::nullopt : std::optional(a->choices[0])};
        } else if (const auto* e = std::get_if<EmitTokens>(&action)) {
          ASSERT_FALSE(ended[e->index]);
          for (int32_t id : e->token_ids)
            ASSERT_EQ(id, static_cast<int32_t>(seen[e->index].size())) << "in order, once";
          for (int32_t id : e->token_ids) seen[e->index].push_back(id);
        } else if (const auto* end = std::get_if<EndChoice>(&action)) {
          ASSERT_FALSE(ended[end->index]);
          ended[end->index] = true;
        } else if (std::holds_alternative<Complete>(action) || std::holds_alternative<Fail>(action)) {
          over = true;
        }
      }
      if (flow.state() == State::kDone) break;
      now += Ms(static_cast<int64_t>(random() % 30));
      const uint32_t index = random() % choices;
      const auto next = static_cast<int32_t>(flow.output(index).size());
      const uint64_t gen = last_gen == 0 ? 1 : 1 + random() % last_gen;
      switch (random() % 9) {
        case 0: flow.WorkerChosen(target = random() % 2 ? kA : kB, now); break;
        case 1: flow.NoWorker(absl::UnavailableError("none"), 0, true, now); break;
        case 2: flow.WorkerLost(target, absl::UnavailableError("gone"), now); break;
        case 3: flow.Timer(now); break;
        case 4: flow.Consumed(index, random() % 5); break;
        case 5: flow.ChoiceStopped(index); break;
        case 6: flow.News(Error(gen, absl::ResourceExhaustedError("full")), now); break;
        default:
          flow.News(Tokens(gen, index, kPrompt + next, {next},
                           random() % 8 == 0 ? FinishReason::kLength : FinishReason::kNone),
                    now);
      }
    }
  }
}

}  // namespace
}  // namespace baton::router
