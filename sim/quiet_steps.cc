#include "sim/quiet_steps.h"

#include <algorithm>
#include <utility>

namespace baton::sim {

void QuietSteps::Note(const engine::StepPlan& plan) {
  for (const engine::SequenceId id : plan.forget) longest_.erase(id);
  for (const engine::NewSequence& one : plan.add) longest_[one.id] = one.prompt_len + one.sampling.max_tokens;
}

bool QuietSteps::IsQuiet(const engine::StepPlan& plan) {
  return !plan.sequences.empty() && plan.copies.empty() &&
         std::ranges::all_of(plan.sequences, [](const engine::SequenceStep& step) {
           return step.num_tokens == 1 && step.sample && !step.prompt_logprobs && step.logits_from == 0;
         });
}

void QuietSteps::Begin(engine::StepPlan plan, TimePoint now) {
  running_ = true;
  last_end_ = now;
  Plan(std::move(plan), now);
}

void QuietSteps::Plan(engine::StepPlan plan, TimePoint now) {
  plan_ = std::move(plan);
  end_ = now + part_.Takes(plan_);
}

std::optional<engine::StepPlan> QuietSteps::CatchUp(TimePoint now) {
  engine::Scheduler& scheduler = engine_.scheduler();
  while (running_ && end_ <= now) {
    const engine::StepResult result = part_.Compute(engine_, role_, plan_);
    on_outputs_(scheduler.Commit(plan_, result, end_), plan_.step, end_);
    last_end_ = end_;
    engine::StepPlan next = scheduler.PlanStep(end_);
    Note(next);
    std::vector<engine::SequenceOutput> more = scheduler.TakeOutputs();
    if (!more.empty()) on_outputs_(std::move(more), next.step, end_);
    if (IsQuiet(next)) {
      Plan(std::move(next), end_);
      continue;
    }
    running_ = false;
    if (!next.empty()) return next;
  }
  return std::nullopt;
}

TimePoint QuietSteps::AnswerEnd(TimePoint until) const {
  int32_t steps = 1 << 20;
  for (const engine::SequenceStep& step : plan_.sequences) {
    const auto longest = longest_.find(step.id);
    // This step draws the token at position context + 1.
    if (longest != longest_.end()) steps = std::min(steps, longest->second - step.context - 1);
  }
  TimePoint end = end_;
  for (int32_t later = 1; later < steps && end < until; ++later) end += part_.Takes(plan_, later);
  return end;
}

}  // namespace baton::sim
