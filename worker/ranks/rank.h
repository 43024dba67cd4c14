// A rank of a worker other than 0: loads its part of the model, takes its KV memory, follows rank 0's steps. And the
// steps of start-up in which all ranks must agree; rank 0 takes the same ones (start_up.cc).
#pragma once

#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/kv_memory.h"
#include "engine/parallel/communicator.h"
#include "engine/parallel/rank_place.h"
#include "kernels/cpu/cpu_ops.h"
#include "kvtransfer/kv_side.h"
#include "worker/ranks/kv_carrier.h"
#include "worker/ranks/shared_memory.h"
#include "worker/worker_config.h"

namespace baton::worker {

/// A rank that is a process: how it moves its own KV.
struct OwnKv {
  CarrierFactory carrier;                              ///< null: role both
  std::shared_ptr<const trust::ClusterSecret> secret;  ///< of the group
};
/// A rank that is a thread: where its KV goes, for rank 0 to see.
using RankKv = std::variant<SharedMemory, OwnKv>;

/// The rank's life, from load to the last step. OK: rank 0 said that there are no more. Blocks; the thread is the
/// rank's executor. The links must outlive it. `on_ready`: it has loaded and waits for steps.
absl::Status RunRank(
    const WorkerConfig& config, int rank, const engine::RankLinks& links, RankKv kv,
    const std::function<void()>& on_ready = [] {});

engine::RankPlace PlaceOf(const WorkerConfig& config, int rank);
/// The device of one rank: its share of the worker's threads.
kernels::CpuOpsConfig OpsConfigOf(const WorkerConfig& config);
engine::ModelSource SourceOf(const WorkerConfig& config, const engine::RankPlace& place);

/// The worker's KV as other workers see it, where each rank carries its own.
KvSide SideOfRanks(const WorkerConfig& config, const engine::Model& model);
/// Rank 0's invitation becomes everybody's.
absl::Status ShareInvitation(engine::Communicator* world, KvInvitation& invitation);

/// Every rank says how a phase went: the error of the first that failed, on every rank. Rank 0 alone: its own.
absl::Status Agree(engine::Communicator* world, const absl::Status& mine);
/// Rank 0's block counts become everybody's; all 0: rank 0 could not plan.
absl::Status ShareBlocks(engine::Communicator* world, std::vector<int32_t>& num_blocks);
/// A rank's KV memory, laid into `given` (empty: allocated). `layout` is the model's.
absl::StatusOr<std::unique_ptr<engine::KvMemory>> MakeRankMemory(const engine::Model& model,
                                                                 const engine::RankPlace& place,
                                                                 const std::vector<int32_t>& num_blocks,
                                                                 kernels::Ops& ops, SharedMemory* given);

}  // namespace baton::worker
