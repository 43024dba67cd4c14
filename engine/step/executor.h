// Runs plans: keeps the tokens and sampling state of the sequences it was told of, builds the ragged batch, runs the
// model, samples. Executor thread only (but Cancel). On rank 0; the other ranks follow its steps (step_channel.h).
//
// On a device that draws its tokens by itself (kernels::Draw) a step may be given while the one before it runs: its
// rows name tokens that the host does not know yet.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
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
  /// Gives one step. Another may follow before its result is awaited, when that was planned ahead and the first is not
  /// Ready: two at most. The plan is not needed afterwards.
  void Enqueue(const StepPlan& plan);
  /// Steps that were given and not awaited.
  size_t under_way() const { return under_way_.size(); }
  /// The step given first has its result: Await waits for nothing, and comes before the next Enqueue.
  bool Ready() const { return !under_way_.empty() && under_way_.front().draw == nullptr; }
  /// The result of the step given first. result.cancelled when Cancel() was heard, or when `plan` was made ahead of a
  /// step that did not count: then no sequence moved on. An error is the device's or
  /// our own; the caller ends the step's requests. With other ranks, an error means that no further step will run.
  /// Blocks that the plan's sequences give back afterwards have no work of the device on them, where KV is handed over.
  absl::StatusOr<StepResult> Await();
  /// Both.
  absl::StatusOr<StepResult> Execute(const StepPlan& plan) {
    Enqueue(plan);
    return Await();
  }
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
    int32_t unread = 0;     ///< tokens behind `tokens` that steps under way draw
    int32_t drawn_row = 0;  ///< of the last of those steps
    int32_t length() const { return static_cast<int32_t>(tokens.size()) + unread; }
  };
  struct UnderWay {
    absl::StatusOr<StepResult> result;
    std::unique_ptr<kernels::Draw> draw;  ///< null: the result is whole
    std::vector<int32_t> drawn;           ///< by its rows: indices into result.sequences
    uint64_t published = 0;               ///< to the other ranks as the step of that number; 0: they have none of it
  };
  struct LogitRow {
    int32_t row = 0;       ///< of the batch
    int32_t sequence = 0;  ///< index into StepPlan::sequences
    int32_t target = -1;   ///< ≥ 0: prompt token to score; else the row is sampled
  };

  absl::StatusOr<StepResult> Run(const StepPlan& plan, UnderWay& step);
  /// Reads what was drawn, and takes the tokens over.
  void Finish(UnderWay& step);
  absl::Status TakeTokens(UnderWay& step);
  void ApplyChanges(const StepPlan& plan);
  /// Without `rows`: the copies alone.
  void BuildBatch(const StepPlan& plan, bool rows);
  void CollectLogitRows(const StepPlan& plan, bool rows);
  /// Fills `draws_` when all rows are drawn at once and the host need not look at the tokens first: no grammar, nothing
  /// to score, something left to draw everywhere.
  void PlanDraws(const StepPlan& plan);
  void BeginDraws(const StepPlan& plan, const kernels::Tensor& logits, UnderWay& step);
  absl::StatusOr<kernels::Tensor> RunOnAllRanks(const StepPlan& plan, UnderWay& step);
  absl::Status Publish(UnderWay& step);
  void EndOnAllRanks(UnderWay& step);
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
  std::vector<kernels::SampleRow> draws_;
  std::vector<std::vector<int32_t>> banned_;  ///< what draws_ looks at
  int32_t named_rows_ = 0;                    ///< rows of the last draw, up to the last that tokens_ names

  std::deque<UnderWay> under_way_;
};

}  // namespace baton::engine
