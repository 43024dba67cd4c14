// The engine of plans: a real scheduler and block pool over a model that draws any token and costs time only. Its KV is
// some zeros a token, which stand for the planned model's: routers are told the latter's layout.
#pragma once

#include <memory>
#include <vector>

#include "plan/step_times.h"
#include "sim/engine_part.h"

namespace baton::sim {

/// What a step takes. Pure.
class StepCost {
 public:
  virtual ~StepCost() = default;
  virtual double Seconds(std::span<const plan::StepRows> rows) const = 0;
};

/// As measured: a + b · rows + c · sequences + d · tokens of KV read.
struct MeasuredCost final : StepCost {
  double step_ms = 0, row_us = 0, sequence_us = 0, kilotoken_us = 0;
  double Seconds(std::span<const plan::StepRows> rows) const override;
};

/// A limit of the machine, and how far real steps are from it.
struct RooflineCost final : StepCost {
  explicit RooflineCost(plan::StepTimes its_times) : times(std::move(its_times)) {}
  plan::StepTimes times;
  double step_ms = 0;                            ///< of every step, beside
  double prefill_factor = 1, decode_factor = 1;  ///< on steps with a chunk of a prompt, and on others
  double Seconds(std::span<const plan::StepRows> rows) const override;
};

struct PlannedWorker {
  engine::SchedulerOptions scheduler;
  int32_t block_size = 16;
  int32_t blocks = 0;
  bool prefix_caching = true;
  KvLayout layout;  ///< that routers are told
};

class PlannedEngine final : public EnginePart {
 public:
  /// `cost` must outlive it.
  PlannedEngine(PlannedWorker worker, const StepCost& cost);
  ~PlannedEngine() override;
  engine::SteppedEngine Make(v1::WorkerRole role, bool odd, engine::RolePolicy* policy) override;
  Duration Takes(const engine::StepPlan& plan, int32_t later) override;
  engine::StepResult Compute(engine::SteppedEngine& engine, v1::WorkerRole role, const engine::StepPlan& plan) override;
  const KvLayout& ToldLayout(const engine::SteppedEngine&) const override { return worker_.layout; }
  double PrefillTokensPerS() const override { return prefill_tokens_per_s_; }
  double DecodeStepMs() const override { return decode_step_ms_; }
  int32_t max_model_len() const override { return worker_.scheduler.max_model_len; }

  /// Of the KV that is kept here.
  static constexpr int64_t kBytesPerToken = 16;  ///< K and V

 private:
  class AnyToken;
  void WriteKv(engine::SteppedEngine& engine, const engine::StepPlan& plan) const;
  const PlannedWorker worker_;
  const StepCost& cost_;
  const std::unique_ptr<AnyToken> model_;
  const std::unique_ptr<kernels::Ops> ops_;
  double prefill_tokens_per_s_ = 0, decode_step_ms_ = 0;
  std::vector<plan::StepRows> rows_;  ///< of a plan; kept for its memory
};

}  // namespace baton::sim
