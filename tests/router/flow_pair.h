// Flows over a (prefill, decode) pair to begin a test with, and what workers answer them.
#pragma once

#include "tests/router/flow_start.h"

namespace baton::router {

inline constexpr WorkerId kP{0, 1}, kQ{1, 2}, kD{2, 3}, kE{3, 4};
inline constexpr uint32_t kPairPrompt = 100, kShort = 8;

inline FlowLimits PairLimits() {
  FlowLimits limits;
  limits.max_attempts = 3;
  limits.failover_wait = std::chrono::milliseconds(50);
  limits.idle_token_timeout = std::chrono::seconds(2);
  limits.total_timeout = std::chrono::seconds(20);
  return limits;
}

inline LegKey Key(uint32_t attempt, uint32_t epoch) { return {"r", attempt, epoch}; }

inline ReserveResult Granted(uint32_t cached = 0) { return {.grant = {"wire", "ticket", cached}}; }

inline PrefillResult First(std::vector<int32_t> tokens, FinishReason finish = FinishReason::kNone) {
  PrefillResult result;
  for (uint32_t i = 0; i < tokens.size(); ++i)
    result.first.push_back({i, tokens[i], std::nullopt, finish, std::nullopt});
  return result;
}

inline absl::Status Gone() { return absl::UnavailableError("gone"); }

/// Brought to `state` on (P, D).
inline RequestFlow PairIn(State state, uint32_t choices = 1) {
  RequestFlow flow("r", kPairPrompt, choices, PairLimits(), kStart);
  flow.Start();
  flow.PairChosen(kP, kD, kShort, kStart);
  if (state != State::kReserving) flow.Reserved(Key(1, 0), Granted(), kStart);
  if (state == State::kStreaming) flow.PrefillEnded(Key(1, 1), First(std::vector<int32_t>(choices, 7)), false, kStart);
  flow.TakeActions();
  EXPECT_EQ(flow.state(), state);
  return flow;
}

inline PrefillResult NoRoom() {
  PrefillResult result{absl::ResourceExhaustedError("no room")};
  result.no_room = true;
  return result;
}

}  // namespace baton::router
