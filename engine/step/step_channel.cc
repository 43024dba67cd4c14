#include "engine/step/step_channel.h"

#include <functional>
#include <utility>

#include "common/status.h"

namespace baton::engine {

absl::Status StepChannel::Publish(const StepBatch& batch) {
  ++published_;
  *running_ = over_ + 1;
  return Send(batch);
}

// As a step without anything to do.
absl::Status StepChannel::Close() { return Send({}); }

void StepChannel::Done() { *running_ = ++over_ < published_ ? over_ + 1 : 0; }

absl::Status StepChannel::Send(const StepBatch& batch) {
  std::vector<int32_t> words = batch.Encode();
  auto count = static_cast<uint64_t>(words.size());
  BATON_RETURN_IF_ERROR(world_.Broadcast(0, std::as_writable_bytes(std::span(&count, 1))));
  return world_.Broadcast(0, std::as_writable_bytes(std::span(words)));
}

absl::Status StepChannel::End() {
  uint64_t none = 0;
  return world_.Broadcast(0, std::as_writable_bytes(std::span(&none, 1)));
}

absl::StatusOr<std::optional<StepBatch>> StepChannel::Next() {
  uint64_t count = 0;
  BATON_RETURN_IF_ERROR(world_.Broadcast(0, std::as_writable_bytes(std::span(&count, 1))));
  if (count == 0) return std::optional<StepBatch>();
  std::vector<int32_t> words(count);
  BATON_RETURN_IF_ERROR(world_.Broadcast(0, std::as_writable_bytes(std::span(words))));
  BATON_ASSIGN_OR_RETURN(StepBatch batch, StepBatch::Decode(words));
  return std::optional<StepBatch>(std::move(batch));
}

absl::Status FollowSteps(StepChannel& channel, Model& model, KvMemory& memory, kernels::Ops& ops) {
  const std::atomic<bool> never{false};
  for (;;) {
    BATON_ASSIGN_OR_RETURN(const std::optional<StepBatch> batch, channel.Next());
    if (!batch.has_value()) return absl::OkStatus();
    RunCopies(*batch, memory, ops);
    absl::Status status;
    std::function<void(int)> on_layer_kv;
    if (batch->followed) on_layer_kv = [](int) {};  // rank 0's own moves KV; all launch a step, or all replay it
    if (batch->has_rows()) status = RunRows(*batch, {}, model, memory, never, std::move(on_layer_kv)).status();
    if (status.ok()) {
      batch->open ? ops.FollowStep() : ops.Sync();
      status = model.LinksHealth();
    }
    if (!status.ok()) {
      channel.Abort(status);
      return status;
    }
  }
}

}  // namespace baton::engine
