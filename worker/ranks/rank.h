// A rank of a worker other than 0: loads its part of the model, takes its KV memory, follows rank 0's steps. And the
// steps of start-up in which all ranks must agree; rank 0 takes the same ones (start_up.cc).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv_mover.h"
#include "engine/cache/kv_memory.h"
#include "engine/parallel/communicator.h"
#include "engine/parallel/device_communicator.h"
#include "engine/parallel/rank_place.h"
#include "kernels/cpu/cpu_ops.h"
#include "kvtransfer/kv_side.h"
#include "worker/ranks/kv_carrier.h"
#include "worker/ranks/shared_memory.h"
#include "worker/worker_config.h"

namespace baton::worker {

/// A rank that is a process: how it moves its own KV.
struct OwnKv {
  CarrierFactory carrier;  ///< null: role both
  trust::PeerTrust trust;  ///< of the group
};
/// A rank that is a thread: where its KV goes, for rank 0 to see; on a GPU it is told of by RankHooks instead.
using RankKv = std::variant<SharedMemory, OwnKv>;
/// KV on a rank's GPU, for rank 0 to hand over: both live as long as the rank does.
struct DeviceKv {
  const engine::KvMemory* memory = nullptr;
  KvMover* mover = nullptr;  ///< null: role both
};

/// The rank's life, from load to the last step. OK: rank 0 said that there are no more. Blocks; the thread is the
/// rank's executor. The links must outlive it. `on_progress`: how far it has loaded. `on_ready`: it has loaded and
/// waits for steps. `on_device_kv`: it has taken its KV on a device; others go on when this returns. `on_end`: its
/// steps are over, as RunRank will say; what it has stays until this returns.
struct RankHooks {
  engine::LoadProgress on_progress = [](std::string_view, double) {};
  std::function<void()> on_ready = [] {};
  std::function<void(const DeviceKv&)> on_device_kv = [](const DeviceKv&) {};
  std::function<void(const absl::Status&)> on_end = [](const absl::Status&) {};
};
absl::Status RunRank(const WorkerConfig& config, int rank, const engine::RankLinks& links, RankKv kv,
                     const RankHooks& hooks);

engine::RankPlace PlaceOf(const WorkerConfig& config, int rank);
/// A rank's share of the worker's threads.
kernels::CpuOpsConfig OpsConfigOf(const WorkerConfig& config);
/// What a rank computes on: its share of the CPU, or its GPU.
absl::StatusOr<std::unique_ptr<kernels::Ops>> MakeOps(const WorkerConfig& config, int rank);
/// A rank's mover, which takes its memory before KV does. Null: `--role both`, or the host reads and writes KV itself.
absl::StatusOr<std::unique_ptr<KvMover>> MakeMover(const WorkerConfig& config, kernels::Ops& ops,
                                                   const engine::Model& model);
engine::ModelSource SourceOf(const WorkerConfig& config, const engine::RankPlace& place);

/// The worker's KV as other workers see it, where each rank carries its own.
KvSide SideOfRanks(const WorkerConfig& config, const engine::Model& model);
/// Rank 0's invitation becomes everybody's.
absl::Status ShareInvitation(engine::Communicator* world, KvInvitation& invitation);

/// Words of that rank about its end, with its number, unless they name a rank already.
std::string OfRank(int rank, std::string_view words);
/// Every rank says how a phase went: the error of the first that failed, on every rank, and on others its number.
/// Rank 0 alone: its own.
absl::Status Agree(engine::Communicator* world, const absl::Status& mine);
/// What a rank computes on (`ops`), and its links to the others over it (`joined`): every rank has them, or none.
absl::Status JoinLinks(const WorkerConfig& config, int rank, const engine::RankLinks& links,
                       std::unique_ptr<kernels::Ops>& ops, engine::DeviceLinks& joined);
/// Rank 0's block counts become everybody's.
absl::Status ShareBlocks(engine::Communicator* world, std::vector<int32_t>& num_blocks);
/// Every rank's, by rank; empty where the memory is the host's.
absl::StatusOr<std::vector<kernels::DeviceMemory>> ShareDeviceMemory(engine::Communicator* world,
                                                                     const kernels::Ops& ops);
/// A rank's KV memory, laid into `given` (empty: allocated). `layout` is the model's.
absl::StatusOr<std::unique_ptr<engine::KvMemory>> MakeRankMemory(const engine::Model& model,
                                                                 const engine::RankPlace& place,
                                                                 const std::vector<int32_t>& num_blocks,
                                                                 kernels::Ops& ops, SharedMemory* given);

}  // namespace baton::worker
