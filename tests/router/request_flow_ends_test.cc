// A leg ends and no worker is to blame: this router stood still, or it stops.
#include <gtest/gtest.h>

#include "router/request/request_flow.h"
#include "tests/router/flow_text.h"

namespace baton::router {
namespace {

constexpr WorkerId kFirstWorker{0, 1};
constexpr uint32_t kEndsPrompt = 10;

RelayNews OneToken(uint64_t gen, uint64_t position) {
  RelayNews news;
  news.attach_gen = gen, news.position = position, news.token_ids = {5};
  return news;
}

RelayNews Lapsed(uint64_t gen) {
  RelayNews news;
  news.attach_gen = gen, news.finish = FinishReason::kError, news.error = absl::AbortedError("nobody renewed it");
  return news;
}

/// On worker A, with three attempts in all.
RequestFlow Attached() {
  FlowLimits limits;
  limits.max_attempts = 3;
  RequestFlow flow("r", kEndsPrompt, 1, limits, kStart);
  flow.Start();
  flow.WorkerChosen(kFirstWorker, kStart);
  return flow;
}

TEST(RequestFlowEnds, LegsThatLapsedBecauseTheRouterStoodStillCostNoAttempt) {
  RequestFlow flow = Attached();
  for (uint64_t gen = 1; gen <= 10; ++gen) {  // more often than there are attempts
    flow.News(OneToken(gen, kEndsPrompt + gen - 1), kStart);
    flow.TakeActions();
    flow.News(Lapsed(gen), kStart);
    EXPECT_EQ(Taken(flow), StrCat("cancel w0 r g", gen, ", pick again"));
    EXPECT_TRUE(flow.excluded().empty()) << "the worker is not to blame";
    flow.WorkerChosen(kFirstWorker, kStart);
    EXPECT_EQ(Taken(flow), StrCat("attach w0 g", gen + 1, " @", kEndsPrompt + gen, " c0"));
  }
  flow.WorkerLost(kFirstWorker, absl::UnavailableError("gone"), kStart);
  EXPECT_EQ(Taken(flow), "cancel w0 r g11, pick again") << "its attempts are all left";
}

TEST(RequestFlowEnds, AWorkerThatSaysAgainAndAgainThatNobodyRenewedALegIsToBlame) {
  RequestFlow flow = Attached();
  for (uint64_t gen = 1; gen <= 8; ++gen) {
    flow.News(Lapsed(gen), kStart);
    EXPECT_TRUE(flow.excluded().empty()) << gen;
    flow.WorkerChosen(kA, kStart);
  }
  flow.News(Lapsed(9), kStart);
  EXPECT_EQ(flow.excluded(), std::vector<WorkerId>{kA});
  for (uint64_t gen = 10; flow.state() != RequestFlow::State::kDone && gen < 20; ++gen) {
    flow.WorkerChosen(kA, kStart);
    flow.News(Lapsed(gen), kStart);
  }
  EXPECT_EQ(flow.state(), RequestFlow::State::kDone) << "its attempts end";
}

TEST(RequestFlowEnds, ARouterThatStopsSaysSoAndBlamesNoWorker) {
  RequestFlow flow = Attached();
  flow.News(OneToken(1, kEndsPrompt), kStart);
  flow.TakeActions();
  flow.WorkerLost(kFirstWorker, absl::CancelledError("the router stops"), kStart);
  EXPECT_EQ(Taken(flow), "fail UNAVAILABLE");
}

}  // namespace
}  // namespace baton::router
