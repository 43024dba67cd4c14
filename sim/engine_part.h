// What of a simulated worker's engine is not the product's: its model, what a step computes, and what it takes. One
// hashes every KV entry, so that proofs see a wrong one; another only costs time, for plans.
#pragma once

#include <vector>

#include "common/clock.h"
#include "proto/worker.pb.h"
#include "sim/stepped_engine.h"

namespace baton::sim {

class EnginePart {
 public:
  virtual ~EnginePart() = default;
  /// A worker's engine. `odd`: it computes with other numerics.
  virtual engine::SteppedEngine Make(v1::WorkerRole role, bool odd, engine::RolePolicy* policy) = 0;
  /// From a step's begin to its result; half of that until its KV is written. `later`: of the step that comes so many
  /// steps after it, when all of them are decodes.
  virtual Duration Takes(const engine::StepPlan& plan, int32_t later = 0) = 0;
  /// A step's result; writes its KV.
  virtual engine::StepResult Compute(engine::SteppedEngine& engine, v1::WorkerRole role,
                                     const engine::StepPlan& plan) = 0;
  /// What routers are told of the KV: it need not be what is kept here.
  virtual const KvLayout& ToldLayout(const engine::SteppedEngine& engine) const { return engine.layout(); }
  /// What workers say of themselves before they have run a step.
  virtual double PrefillTokensPerS() const = 0;
  virtual double DecodeStepMs() const = 0;
  virtual int32_t max_model_len() const = 0;
};

}  // namespace baton::sim
