// The engine of proofs: a model that hashes every KV entry it sees, and steps that take what the scenario says.
#pragma once

#include "sim/engine_part.h"
#include "sim/scenario.h"

namespace baton::sim {

/// `odd`: of other numerics. Its grammars are those of SimText.
engine::SteppedEngineOptions EngineOptions(const ClusterScenario& scenario, int tokens_per_block, int blocks, bool odd);

class ProofEngine final : public EnginePart {
 public:
  /// `scenario` must outlive it.
  explicit ProofEngine(const ClusterScenario& scenario) : scenario_(scenario) {}
  engine::SteppedEngine Make(v1::WorkerRole role, bool odd, engine::RolePolicy* policy) override;
  Duration Takes(const engine::StepPlan& plan, int32_t later) override;
  engine::StepResult Compute(engine::SteppedEngine& engine, v1::WorkerRole role, const engine::StepPlan& plan) override;
  double PrefillTokensPerS() const override { return 1e6 / scenario_.us_per_token; }
  double DecodeStepMs() const override { return 0.5; }
  int32_t max_model_len() const override { return scenario_.max_model_len; }

 private:
  const ClusterScenario& scenario_;
};

}  // namespace baton::sim
