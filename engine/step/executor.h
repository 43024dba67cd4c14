// Runs plans: keeps the tokens and sampling state of the sequences it was told of, builds the ragged batch, runs the
// model, samples. Executor thread only (but Cancel). On rank 0; the other ranks follow its steps (step_channel.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "engine/cache/kv_memory.h"
#include "engine/model/model.h"
#include "engine/step/step_batch.h"
#include "engine/step/step_channel.h"
#include "engine/step/step_plan.h"
#include "kernels/ops.h"

namespace baton::engine {

/// Follows a step while it runs: what a prefill worker sends layer by layer. Called on the executor thread; must not
/// block.
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  /// The KV of `layer` for all of the plan's rows is in their blocks once what Ops was asked for is done
  /// (Ops::WhenDone). The step may still be cancelled.
  virtual void OnLayerKv(const StepPlan& plan, int layer) = 0;
};

class Executor {
 public:
  /// All must outlive it; `observer` may be null, and `channel` is where there are no other ranks.
  Executor(Model& model, KvMemory& memory, kernels::Ops& ops, LayerObserver* observer = nullptr,
           StepChannel* channel = nullptr);
  /// Runs one step. result.cancelled when Cancel() was heard, or when `plan` was made ahead of a
  /// step that did not count: then no sequence moved on. An error is the device's or
  /// our own; the caller ends the step's requests. With other ranks, an error means that no further step will run.
  /// Blocks that the plan's sequences give back afterwards have no work of the device on them, where KV is handed over.
  absl::StatusOr<StepResult> Execute(const StepPlan& plan);
  /// The step given last may stop between layers. Any thread.
  void Cancel() { cancel_.store(true, std::memory_order_relaxed); }
  /// Another role's from now on; while no step runs, on the thread that gives plans.
  void UseObserver(LayerObserver* observer) { observer_ = observer; }
  /// Before the next plan is given, on the thread that gives it.
  void ClearCancel() { cancel_.store(false, std::memory_order_relaxed); }
  size_t sequences() const { return sequences_.size(); }

 private:
  struct Sequence {
    uint32_t index = 0;
    std::vector<int32_t> tokens;
    int32_t prompt_len = 0;
    SamplingParams sampling;
    std::shared_ptr<AnswerGrammar> grammar;
  };
  struct LogitRow {
    int32_t row = 0;       ///< of the batch
    int32_t sequence = 0;  ///< index into StepPlan::sequences
    int32_t target = -1;   ///< ≥ 0: prompt token to score; else the row is sampled
  };

  absl::StatusOr<StepResult> Run(const StepPlan& plan);
  void ApplyChanges(const StepPlan& plan);
  /// Without `rows`: the copies alone.
  void BuildBatch(const StepPlan& plan, bool rows);
  void CollectLogitRows(const StepPlan& plan, bool rows);
  absl::StatusOr<kernels::Tensor> RunOnAllRanks(const StepPlan& plan);
  kernels::SampleRow MakeSampleRow(const Sequence& sequence, std::vector<int32_t>& banned) const;
  /// Puts the grammar's mask into `row`; false, and `result` says why, when no token can be drawn.
  bool MayDraw(Sequence& sequence, std::chrono::steady_clock::time_point until, const std::vector<int32_t>& banned,
               kernels::SampleRow& row, SequenceResult& result) const;
  void SampleRows(const StepPlan& plan, const kernels::Tensor& logits, StepResult& result);
  void ScorePrompts(const StepPlan& plan, const kernels::Tensor& logits, StepResult& result);

  Model& model_;
  KvMemory& memory_;
  kernels::Ops& ops_;
  LayerObserver* observer_;
  StepChannel* const channel_;
  std::atomic<bool> cancel_{false};
  bool results_read_ = false;  ///< of the step that runs: the device is done with it
  uint64_t lost_step_ = 0;     ///< the last that was cancelled or failed
  absl::flat_hash_map<SequenceId, Sequence> sequences_;

  // The step being built; kept to reuse the memory.
  std::vector<int32_t> tokens_;
  StepBatch batch_;
  std::vector<LogitRow> wanted_;
};

}  // namespace baton::engine
