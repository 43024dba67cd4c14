// A flow waits: for another worker, for tokens, for its client. Each wait has its own end.
#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "tests/router/flow_start.h"

namespace baton::router {
namespace {

TEST(RequestFlow, WaitingForAnotherWorkerEndsAtItsLimit) {
  RequestFlow flow = FlowIn(State::kWaiting);
  flow.Timer(kStart + Ms(20));
  EXPECT_EQ(Taken(flow), "pick again");
  flow.NoWorker(absl::UnavailableError("none"), 0, true, kStart + Ms(20));
  EXPECT_EQ(flow.state(), State::kWaiting);
  flow.Timer(kStart + Ms(60));
  flow.TakeActions();
  flow.NoWorker(absl::UnavailableError("none"), 0, true, kStart + Ms(60));
  EXPECT_EQ(Taken(flow), "fail UNAVAILABLE lost");
}

// A worker that ends tells its requests before the router sees it leave: it stands there as ready.
TEST(RequestFlow, AWorkerThatSaysItIsUnavailableIsWaitedForAndAskedAgainAfterASecond) {
  FlowLimits limits = Limits();
  limits.failover_wait = Ms(5000);
  RequestFlow flow("r", kPrompt, 1, limits, kStart);
  flow.Start();
  flow.WorkerChosen(kA, kStart);
  flow.News(Error(1, absl::UnavailableError("the worker stops")), kStart);
  EXPECT_TRUE(flow.last_was_unavailable());
  flow.NoWorker(absl::UnavailableError("no other worker"), 0, true, kStart);
  flow.Timer(kStart + Ms(20));
  EXPECT_EQ(flow.excluded(), std::vector<WorkerId>{kA});
  flow.NoWorker(absl::UnavailableError("no other worker"), 0, true, kStart + Ms(20));
  flow.Timer(kStart + Ms(1000));
  EXPECT_TRUE(flow.excluded().empty());
  flow.TakeActions();
  flow.WorkerChosen(kA, kStart + Ms(1000));
  EXPECT_EQ(Taken(flow), "attach w0 g2 @10");
}

TEST(RequestFlow, AWorkerThatIsFullIsNotWaitedFor) {
  RequestFlow flow = FlowIn(State::kAttached);
  flow.News(Error(1, absl::ResourceExhaustedError("full")), kStart);
  EXPECT_FALSE(flow.last_was_unavailable());
  flow.TakeActions();
  flow.NoWorker(absl::UnavailableError("another one may come back"), 0, true, kStart);
  EXPECT_EQ(Taken(flow), "fail RESOURCE_EXHAUSTED");
}

TEST(RequestFlow, DeadlinesOfFirstTokenIdleAndTotal) {
  FlowLimits limits;
  limits.first_token_timeout = Ms(100);
  limits.idle_token_timeout = Ms(60);
  limits.total_timeout = Ms(500);
  RequestFlow flow("r", kPrompt, 1, limits, kStart);
  flow.Start();
  EXPECT_EQ(Taken(flow, true), "arm +100, pick");
  flow.WorkerChosen(kA, kStart);
  EXPECT_EQ(Taken(flow, true), "attach w0 g1 @10, arm +100") << "a prompt may take longer than a token";
  flow.News(Tokens(1, 0, kPrompt, {1}), kStart + Ms(50));
  EXPECT_EQ(Taken(flow, true), "emit c0 1, arm +110") << "from now on silence counts";
  flow.News(Tokens(1, 0, kPrompt + 1, {1}), kStart + Ms(70));
  flow.Timer(kStart + Ms(110));
  EXPECT_EQ(Taken(flow, true), "emit c0 1, arm +130") << "the idle deadline moved with the token";
  flow.Timer(kStart + Ms(130));
  EXPECT_EQ(Taken(flow), "cancel w0 r g1, pick again") << "a silent worker is left";
  flow.WorkerChosen(kB, kStart + Ms(480));
  flow.TakeActions();
  flow.Timer(kStart + Ms(500));
  EXPECT_EQ(Taken(flow), "cancel w1 r g2, fail DEADLINE_EXCEEDED");
}

/// Two choices on worker A, idle after 60 ms.
RequestFlow WithTwoTokensOfCredit() {
  FlowLimits limits;
  limits.idle_token_timeout = Ms(60);
  limits.credit_tokens = 2;
  RequestFlow flow("r", kPrompt, 2, limits, kStart);
  flow.Start();
  flow.WorkerChosen(kA, kStart);
  return flow;
}

TEST(RequestFlow, AWorkerWithoutCreditIsNotIdle) {
  RequestFlow flow = WithTwoTokensOfCredit();
  flow.News(Tokens(1, 0, kPrompt, {1, 2}), kStart);
  flow.News(Tokens(1, 1, kPrompt, {1}), kStart);
  flow.TakeActions();
  RequestFlow other = flow;
  other.Timer(kStart + Ms(60));
  EXPECT_EQ(Taken(other), "cancel w0 r g1, pick again") << "choice 1 has a token of credit left";
  flow.News(Tokens(1, 1, kPrompt + 1, {2}), kStart);
  flow.TakeActions();
  flow.Timer(kStart + Ms(60));
  EXPECT_EQ(Taken(flow, true), "arm +120") << "it is the client that is waited for";
  flow.Consumed(0, 1);
  EXPECT_EQ(Taken(flow), "credit r c0 +1");
  flow.Timer(kStart + Ms(119));
  EXPECT_EQ(Taken(flow, true), "arm +120");
  flow.Timer(kStart + Ms(120));
  EXPECT_EQ(Taken(flow), "cancel w0 r g1, pick again");
}

TEST(RequestFlow, AnEndedChoiceNeedsNoCredit) {
  RequestFlow flow = WithTwoTokensOfCredit();
  flow.News(Tokens(1, 0, kPrompt, {1}, FinishReason::kLength), kStart);
  flow.News(Tokens(1, 1, kPrompt, {1, 2}), kStart);
  flow.TakeActions();
  flow.Timer(kStart + Ms(60));
  EXPECT_EQ(Taken(flow, true), "arm +120") << "the one that goes on waits for the client";
}

TEST(RequestFlow, NoTokenInTimeFails) {
  FlowLimits limits;
  limits.first_token_timeout = Ms(100);
  RequestFlow flow("r", kPrompt, 1, limits, kStart);
  flow.Start();
  flow.WorkerChosen(kA, kStart);
  flow.TakeActions();
  flow.Timer(kStart + Ms(100));
  EXPECT_EQ(Taken(flow), "cancel w0 r g1, fail DEADLINE_EXCEEDED");
}

// 2^32 ms and a little is no time at all in the 32 bits of a leg.
TEST(RequestFlow, WorkersAreToldOfNoDeadlineThatIsFurtherThanADayAway) {
  for (const auto& [left, told] : {std::pair{std::chrono::hours(24), 86400000u},
                                   {std::chrono::hours(0), 0u},  // there is none
                                   {std::chrono::hours(25), 0u},
                                   {std::chrono::hours(1193 * 3), 0u},
                                   {std::chrono::hours(24 * 365), 0u}}) {
    FlowLimits limits = Limits();
    limits.total_timeout = left;
    RequestFlow flow("r", kPrompt, 1, limits, kStart);
    flow.Start();
    flow.WorkerChosen(kA, kStart);
    std::vector<FlowAction> actions;
    ASSERT_TRUE(flow.TakeActions(actions));
    std::optional<uint32_t> seen;
    for (const FlowAction& action : actions) {
      if (const auto* send = std::get_if<SendTo>(&action)) seen = std::get<AttachLeg>(send->order).deadline_ms;
    }
    EXPECT_EQ(seen, told) << left.count() << " hours";
  }
}

}  // namespace
}  // namespace baton::router
