// Flows to begin a test with, and the news that workers send them.
#pragma once

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "router/request/request_flow.h"
#include "tests/router/flow_text.h"

namespace baton::router {

using State = RequestFlow::State;
inline constexpr WorkerId kA{0, 1}, kB{1, 2};

inline Duration Ms(int64_t ms) { return std::chrono::milliseconds(ms); }

inline RelayNews Tokens(uint64_t gen, uint32_t index, uint64_t position, std::vector<int32_t> ids,
                        FinishReason finish = FinishReason::kNone) {
  RelayNews news;
  news.attach_gen = gen;
  news.index = index;
  news.position = position;
  news.token_ids = std::move(ids);
  news.finish = finish;
  return news;
}

inline RelayNews Error(uint64_t gen, absl::Status status) {
  RelayNews news = Tokens(gen, 0, 0, {}, FinishReason::kError);
  news.error = std::move(status);
  return news;
}

inline FlowLimits Limits() {
  FlowLimits limits;
  limits.max_attempts = 3;
  limits.credit_tokens = 8;
  limits.failover_wait = Ms(50);
  limits.total_timeout = Ms(10000);
  return limits;
}

inline constexpr uint32_t kPrompt = 10;

/// A flow of `choices` choices that has been brought to `state` on worker A (kWaiting: after A was lost).
inline RequestFlow FlowIn(State state, uint32_t choices = 1) {
  RequestFlow flow("r", kPrompt, choices, Limits(), kStart);
  flow.Start();
  if (state != State::kPicking) flow.WorkerChosen(kA, kStart);
  if (state == State::kStreaming) flow.News(Tokens(1, 0, kPrompt, {7, 8}), kStart);
  if (state == State::kWaiting) {
    flow.WorkerLost(kA, absl::UnavailableError("gone"), kStart);
    flow.NoWorker(absl::UnavailableError("none"), 0, true, kStart);
  }
  if (state == State::kDone) flow.ClientGone();
  flow.TakeActions();
  EXPECT_EQ(flow.state(), state);
  return flow;
}

}  // namespace baton::router
