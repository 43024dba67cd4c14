// From a config to an engine's parts, phase by phase: resolve → read → pack → KV allocate → warm-up. Runs on a thread
// of its own while gRPC answers "loading"; progress may be read from any thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv_mover.h"
#include "engine/cache/kv_memory.h"
#include "engine/model/model.h"
#include "engine/parallel/device_communicator.h"
#include "engine/step/step_channel.h"
#include "kernels/ops.h"
#include "kvtransfer/slot_passes.h"
#include "text/grammar.h"
#include "worker/ranks/kv_lines.h"
#include "worker/ranks/rank_host.h"
#include "worker/worker_config.h"

namespace baton::worker {

/// Where a start-up is, and whether anybody still wants it. Thread-safe.
class StartUpProgress {
 public:
  struct View {
    std::string phase;
    double fraction = 0;
  };
  void Set(std::string_view phase, double fraction);
  View Get() const;
  /// The model need not be loaded any more.
  void GiveUp() { given_up_ = true; }
  const std::atomic<bool>& given_up() const { return given_up_; }

 private:
  std::atomic<bool> given_up_{false};
  mutable std::mutex mutex_;
  View view_{"resolve", 0};
};

/// Everything an engine is built from. Members are destroyed last to first.
struct LoadedModel {
  std::unique_ptr<kernels::Ops> ops;
  engine::DeviceLinks links;       ///< of several ranks, as the model takes them
  std::unique_ptr<KvMover> mover;  ///< null: `--role both`, or the host reads and writes KV itself
  std::unique_ptr<engine::Model> model;
  std::unique_ptr<engine::KvMemory> memory;
  engine::RankPlace place;  ///< of this process's part: rank 0
  /// With several ranks: the way of steps to them, and their KV memory as it lies here.
  std::unique_ptr<engine::StepChannel> channel;
  std::vector<std::unique_ptr<engine::KvMemory>> others;
  std::vector<DeviceKv> device_kv;  ///< instead, where it lies on GPUs: the ranks'
  std::unique_ptr<KvLines> lines;   ///< where ranks carry their own KV; else null
  KvSide side;                      ///< what other workers see of its KV
  engine::BlockBudget blocks;
  std::shared_ptr<const GrammarCompiler> grammars;  ///< null: the model's files have no tokenizer that grammars can use
  std::vector<int32_t> recorded_rows;  ///< steps of decodes that the device has recorded, by their rows; ascending
  int32_t max_model_len = 0;
  std::string name;         ///< served name
  std::string numerics_id;  ///< hex
  /// Rank 0's, and those of ranks that are threads, by rank.
  std::vector<const engine::KvMemory*> AllMemory() const;
  /// Of all of that; empty: the host reads and writes it itself, or nothing is handed over.
  std::vector<KvMover*> AllMovers() const;
  /// The same as what this process hands over, or takes.
  KvPoolView PoolHere() const;
};

/// Loads and allocates. Prints each phase with its time and the KV capacity lines. ResourceExhausted: model or KV
/// memory does not fit (both numbers and the flag that helps). `ranks`: the other ranks, which load at the same time;
/// they must outlive the result.
absl::StatusOr<LoadedModel> StartUp(const WorkerConfig& config, StartUpProgress& progress, RankHost* ranks = nullptr);

}  // namespace baton::worker
