// A model driven without a scheduler: whole prompts and decode steps over private blocks, for timing the forward pass.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/lib/timed_ops.h"
#include "engine/cache/kv_memory.h"
#include "engine/model/model.h"

namespace baton::bench {

class ModelRun {
 public:
  /// Room for `sequences` sequences of `max_tokens` tokens, steps of at most `max_step_tokens`. Aborts on failure.
  ModelRun(const std::string& path, bool dummy, int threads, int sequences, int max_tokens, int max_step_tokens);

  /// Every sequence's context becomes empty.
  void Reset();
  /// `tokens` more tokens of sequence 0 in one step per `chunk`.
  void Prefill(int tokens, int chunk);
  /// One token more for each of the first `sequences` sequences, taking the greedy token of the step before.
  void DecodeStep(int sequences);
  /// Gives the first `sequences` sequences a context of `tokens` without computing it (its KV is zero).
  void Pretend(int sequences, int tokens);

  const engine::Model& model() const { return *model_; }
  const kernels::OpsTraits& traits() const { return ops_->traits(); }
  /// What the operations of the steps took.
  TimedOps& ops() { return *ops_; }

 private:
  void Step(const std::vector<int32_t>& rows_per_sequence);

  std::unique_ptr<TimedOps> ops_;
  std::unique_ptr<engine::Model> model_;
  std::unique_ptr<engine::KvMemory> memory_;
  int64_t blocks_per_sequence_ = 0;
  std::vector<int32_t> context_, next_token_;
};

}  // namespace baton::bench
