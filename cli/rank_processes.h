// Ranks 1 … of a worker as processes of their own (`baton rank`), on this machine.
//
// They are children of the worker's main thread and die with it, whatever ends it; they reach each other over TCP on
// loopback. The worker's end of their KV is shared memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/ranks/rank_host.h"

namespace baton::cli {

/// Starts them and waits until they have met. `arguments`: the worker's flags, which are theirs too. On the main
/// thread, before any gRPC object exists. Unavailable: one ended at once. DeadlineExceeded: one did not come.
absl::StatusOr<std::unique_ptr<worker::RankHost>> StartRankProcesses(const worker::WorkerConfig& config,
                                                                     const std::vector<std::string>& arguments);

/// What `baton rank` finds in its environment and descriptors.
inline constexpr const char* kRankSecretVariable = "BATON_RANK_SECRET";
inline constexpr int kRankKvDescriptor = 3;

}  // namespace baton::cli
