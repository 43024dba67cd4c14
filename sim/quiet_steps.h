// Steps of decodes that nothing disturbs, as one turn of the worker: they are planned and committed one after the other
// by the real scheduler, each at its own time, but only when somebody looks: when something comes for the worker, or
// when the first of its answers ends. What comes meanwhile finds the worker in the very step that runs then.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "sim/engine_part.h"

namespace baton::sim {

class QuietSteps {
 public:
  /// `on_outputs`: what is new, and when it came about; after each step. The others must outlive it.
  using OnOutputs = std::function<void(std::vector<engine::SequenceOutput> outputs, uint64_t step, TimePoint at)>;
  QuietSteps(engine::SteppedEngine& engine, EnginePart& part, v1::WorkerRole role, OnOutputs on_outputs)
      : engine_(engine), part_(part), role_(role), on_outputs_(std::move(on_outputs)) {}

  /// Hears of every plan, of other steps, too: how long each answer may become.
  void Note(const engine::StepPlan& plan);
  /// A step in which every sequence draws one token after the one before.
  static bool IsQuiet(const engine::StepPlan& plan);
  /// `plan` begins.
  void Begin(engine::StepPlan plan, TimePoint now);
  bool running() const { return running_; }
  /// Ends the steps that are over by `now`. A plan that is not quiet any more ends it: then that is returned, and it
  /// began at the end of the last step.
  std::optional<engine::StepPlan> CatchUp(TimePoint now);
  /// The end of the step that runs.
  TimePoint StepEnd() const { return end_; }
  /// The end of the step in which the first answer ends, or of the last one that begins before `until`.
  TimePoint AnswerEnd(TimePoint until) const;
  /// The end of the last step that is over.
  TimePoint last_end() const { return last_end_; }

 private:
  void Plan(engine::StepPlan plan, TimePoint now);
  engine::SteppedEngine& engine_;
  EnginePart& part_;
  const v1::WorkerRole role_;
  const OnOutputs on_outputs_;
  absl::flat_hash_map<engine::SequenceId, int32_t> longest_;  ///< tokens of a sequence that will draw no more
  bool running_ = false;
  engine::StepPlan plan_;
  TimePoint end_{}, last_end_{};
};

}  // namespace baton::sim
