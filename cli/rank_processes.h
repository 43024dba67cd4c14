// Ranks 1 … of a worker as processes of their own (`baton rank`): on this machine, or on several, where each machine's
// `baton worker` starts its own. Each keeps its KV to itself, and hands it over itself.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "worker/ranks/rank_host.h"

namespace baton::cli {

/// Starts them and waits until they have met. `arguments`: the worker's flags, which are theirs too. On the main
/// thread, before any gRPC object exists. Unavailable: one ended at once. DeadlineExceeded: one did not come.
absl::StatusOr<std::unique_ptr<worker::RankHost>> StartRankProcesses(const worker::WorkerConfig& config,
                                                                     const std::vector<std::string>& arguments);

/// How long ranks of several machines wait for each other at the start: machines are not up at once.
inline constexpr Duration kMeetWithin = std::chrono::minutes(10);
/// How long one that sees a loss waits to be told its cause.
inline constexpr Duration kCauseWithin = std::chrono::milliseconds(500);

}  // namespace baton::cli
