// A role of a simulated worker: what the product's role is over a transfer thread, here over a loop in virtual time.
#pragma once

#include <string>

#include "worker/process/role_service.h"

namespace baton::sim {

class RolePart : public worker::Role {
 public:
  /// A step has written the KV of all layers.
  virtual void OnLayers(const engine::StepPlan& plan) { (void)plan; }
  /// The process of this rank, which is not 0, is gone.
  virtual void LoseRank(int) {}
  /// This rank, which is not 0, stands still from now on, or goes on.
  virtual void HangRank(int, bool) {}
  /// Where the furthest of its prompts is: "idle", "before" its KV travels, "during" that or "after" it.
  virtual const char* Moment() const { return "idle"; }
  /// What it holds of handoffs; empty: nothing.
  virtual std::string Holds() const = 0;
  /// After every turn; dies when its books do not agree.
  virtual void CheckInvariants() const {}
};

}  // namespace baton::sim
