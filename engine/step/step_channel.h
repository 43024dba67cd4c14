// Steps from rank 0 to the other ranks of a worker, and what those do with them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "engine/parallel/communicator.h"
#include "engine/step/step_batch.h"

namespace baton::engine {

/// Over all ranks of the worker, whichever backend joins them. Thread: the rank's executor.
class StepChannel {
 public:
  /// `world` must outlive it.
  explicit StepChannel(Communicator& world) : world_(world) {}

  // ---- rank 0
  absl::Status Publish(const StepBatch& batch);
  /// How many were published.
  uint64_t published() const { return published_; }
  /// None follows the open step that was published last before it ends: the others end it.
  absl::Status Close();
  /// The oldest of those that were published and are not over is over.
  void Done();
  /// The number of the oldest step that is not over, 0: all are. Any thread may read it, and keep it.
  std::shared_ptr<const std::atomic<uint64_t>> running() const { return running_; }
  /// No more steps: the others' Next has nothing.
  absl::Status End();

  // ---- the others
  /// Waits for a step; nothing: there are no more.
  absl::StatusOr<std::optional<StepBatch>> Next();

  /// The step went wrong after Publish: nobody shall wait for this rank.
  void Abort(const absl::Status& why) { world_.Abort(why); }

 private:
  Communicator& world_;
  absl::Status Send(const StepBatch& batch);
  uint64_t published_ = 0, over_ = 0;
  const std::shared_ptr<std::atomic<uint64_t>> running_ = std::make_shared<std::atomic<uint64_t>>(0);
};

/// The loop of a rank other than 0: runs steps until there are no more (OK), or until one fails, which breaks the
/// links.
absl::Status FollowSteps(StepChannel& channel, Model& model, KvMemory& memory, kernels::Ops& ops);

}  // namespace baton::engine
