#include "sim/proof_engine.h"

#include "engine/sampling/answer_grammar.h"
#include "sim/router_process.h"

namespace baton::sim {

namespace {

const std::shared_ptr<const GrammarCompiler>& Compiler() {
  static const std::shared_ptr<const GrammarCompiler> compiler =
      GrammarCompiler::Make(*SimText().tokenizer, SimText().tokenizer->eos_ids(), engine::kFakeVocab).value();
  return compiler;
}

}  // namespace

using std::chrono::microseconds;

engine::SteppedEngineOptions EngineOptions(const ClusterScenario& scenario, int tokens_per_block, int blocks,
                                           bool odd) {
  engine::SteppedEngineOptions options;
  std::optional<DType> dtype;
  if (scenario.odd_dtype) dtype = odd ? DType::kBF16 : DType::kF32;
  options.layout = engine::FakeLayout(tokens_per_block, scenario.window, dtype, scenario.layers * scenario.heads);
  options.heads = scenario.heads;
  options.numerics = odd ? 1000 : 0;
  options.num_blocks.assign(options.layout.groups.size(), blocks);
  options.scheduler.max_model_len = scenario.max_model_len;
  options.scheduler.max_step_ms = 0;
  options.scheduler.max_num_batched_tokens = scenario.chunk;
  if (scenario.undelivered_tokens > 0) options.scheduler.max_undelivered_tokens = scenario.undelivered_tokens;
  options.grammars = std::make_shared<engine::GrammarPool>(Compiler(), 0);
  return options;
}

engine::SteppedEngine ProofEngine::Make(v1::WorkerRole role, bool odd, engine::RolePolicy* policy) {
  const bool prefill = role == v1::WORKER_ROLE_PREFILL;
  return engine::SteppedEngine(EngineOptions(scenario_, prefill ? scenario_.prefill_block : scenario_.decode_block,
                                             prefill ? scenario_.prefill_blocks : scenario_.decode_blocks, odd),
                               policy);
}

Duration ProofEngine::Takes(const engine::StepPlan& plan, int32_t) {
  return 2 * (microseconds(scenario_.step_us) + plan.total_tokens * microseconds(scenario_.us_per_token));
}

engine::StepResult ProofEngine::Compute(engine::SteppedEngine& engine, v1::WorkerRole, const engine::StepPlan& plan) {
  return engine.executor().Execute(plan).value();
}

}  // namespace baton::sim
