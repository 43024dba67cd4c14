// Random steps of a model on the emulated GPU, for tests: a worker's limits, steps up to them, tokens and scores.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/status.h"
#include "engine/cache/kv_memory.h"
#include "engine/model/model.h"
#include "kernels/cuda/host/cuda_ops.h"

namespace baton::engine {

/// What the steps below stay within, and the model is loaded for.
struct RandomLimits {
  int rows = 40, sequences = 5, positions = 300;
  int scored = 12;  ///< prompt tokens
};

struct RandomStep {
  std::vector<int32_t> tokens, row_start{0}, context, tables, logit_rows;
  std::vector<int32_t> targets;  ///< one per logit row: the rows are scored; empty: they are sampled
  int stride = 0;
};

/// Everything of one worker's GPU: dies in the order of its members' needs.
struct DeviceModel {
  std::unique_ptr<kernels::Ops> ops;
  std::unique_ptr<Model> model;
  std::unique_ptr<KvMemory> memory;
};

inline ModelSource SourceWithin(const std::string& path, const RandomLimits& limits) {
  ModelSource source{.path = path, .dummy_weights = true, .dummy_seed = 7};
  source.context_tokens = limits.positions;
  source.max_sequences = limits.sequences;
  source.max_logit_rows = limits.sequences + limits.scored;
  return source;
}

inline absl::StatusOr<DeviceModel> LoadOn(std::unique_ptr<kernels::Ops> ops, const ModelSource& source,
                                          const RandomLimits& limits) {
  DeviceModel out{.ops = std::move(ops)};
  BATON_ASSIGN_OR_RETURN(out.model, LoadModel(source, *out.ops, limits.rows, nullptr));
  const int blocks = limits.sequences * (limits.positions / kUnitTokens + 1);
  const std::vector<int32_t> counts(out.model->kv_layout().groups.size(), blocks);
  BATON_ASSIGN_OR_RETURN(out.memory, KvMemory::Create(out.model->kv_layout(), counts, *out.ops));
  out.ops->Sync();
  return out;
}
inline absl::StatusOr<DeviceModel> LoadOnDevice(const ModelSource& source, const RandomLimits& limits,
                                                const kernels::CudaOpsConfig& config) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<kernels::Ops> ops, kernels::MakeCudaOps(config));
  return LoadOn(std::move(ops), source, limits);
}

/// `kind` 0: sequences of one row, sampled or scored; 1: of up to all rows; 2: the longest prompt; 3: all that a step
/// may have, at the end of the context.
inline RandomStep MakeStep(int kind, const RandomLimits& limits, int vocab, std::mt19937& random) {
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  RandomStep step;
  const int sequences = kind == 2 ? 1 : kind == 3 ? limits.sequences : draw(1, limits.sequences);
  int left = limits.rows;
  for (int s = 0; s < sequences; ++s) {
    const int after = sequences - s - 1;  // sequences that need a row yet
    const int rows = kind == 0 ? 1 : kind >= 2 && after == 0 ? left : draw(1, left - after);
    left -= rows;
    const int context = kind >= 2 ? limits.positions - rows : draw(0, limits.positions - rows);
    step.row_start.push_back(step.row_start.back() + rows);
    step.context.push_back(context);
    step.logit_rows.push_back(step.row_start.back() - 1);
    step.stride = std::max(step.stride, (context + rows - 1) / kUnitTokens + 1);
  }
  const int blocks = limits.positions / kUnitTokens + 1;  // of each sequence, its own
  for (int s = 0; s < sequences; ++s)
    for (int b = 0; b < step.stride; ++b) step.tables.push_back(s * blocks + b);
  for (int r = 0; r < step.row_start.back(); ++r) step.tokens.push_back(draw(0, vocab - 1));
  if (draw(0, 3) == 0) {  // scored instead
    step.logit_rows.clear();
    for (int r = 0; r < std::min(limits.scored, step.row_start.back()); ++r) {
      step.logit_rows.push_back(r);
      step.targets.push_back(draw(0, vocab - 1));
    }
  }
  return step;
}

struct StepAnswer {
  std::vector<float> logits;
  std::vector<kernels::SampleResult> rows;
};

/// `draws`: what will be drawn; `drawn_rows`: of the draw before, which the step's tokens may name.
inline absl::StatusOr<kernels::Tensor> Forward(DeviceModel& on, const RandomStep& step,
                                               std::span<const kernels::SampleRow> draws = {}, int32_t drawn_rows = 0) {
  ForwardBatch batch{.tokens = step.tokens, .logit_rows = step.logit_rows, .drawn_rows = drawn_rows, .draws = draws};
  const std::vector<std::vector<int32_t>> tables(on.memory->groups().size(), step.tables);  // one for each group
  for (const std::vector<int32_t>& table : tables)
    batch.groups.push_back({step.row_start, step.context, table, step.stride});
  const std::atomic<bool> cancel{false};
  return on.model->Forward(batch, on.memory->groups(), cancel);
}

/// Greedy, drawn, penalized and biased ones, with log-probabilities or without, by the row's number.
inline std::vector<kernels::SampleRow> RowsToDraw(const RandomStep& step) {
  static const std::vector<std::pair<int32_t, float>> bias{{5, 2.0f}, {9, -1.0f}};
  std::vector<kernels::SampleRow> rows(step.logit_rows.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    rows[r].temperature = r % 3 == 0 ? 0.0f : 1.0f;
    rows[r].position = static_cast<uint64_t>(step.context[r]);
    rows[r].top_p = r % 2 == 0 ? 1.0f : 0.8f;
    rows[r].num_logprobs = r % 2 == 0 ? 4 : -1;
    if (r % 4 == 1) rows[r].logit_bias = bias;
    if (r % 4 < 2) continue;
    rows[r].repetition_penalty = 1.2f;
    rows[r].frequency_penalty = 0.5f;
    rows[r].prompt_tokens = step.tokens;
    rows[r].output_tokens = step.tokens;
  }
  return rows;
}

/// Runs the step, and samples its rows, at once or as a draw (without lists, which a recorded step edits its logits
/// by), or scores them.
inline absl::StatusOr<StepAnswer> RunStep(DeviceModel& on, const RandomStep& step) {
  const bool sampled = step.targets.empty(), begun = sampled && step.context[0] % 2 == 0;
  std::vector<kernels::SampleRow> rows = sampled ? RowsToDraw(step) : std::vector<kernels::SampleRow>();
  for (size_t r = 0; begun && r < rows.size(); ++r) {
    rows[r].logit_bias = {};
    rows[r].repetition_penalty = 1.0f;
    rows[r].frequency_penalty = 0.0f;
  }
  BATON_ASSIGN_OR_RETURN(
      const kernels::Tensor logits,
      Forward(on, step, begun ? std::span<const kernels::SampleRow>(rows) : std::span<const kernels::SampleRow>()));
  StepAnswer answer;
  answer.logits.resize(static_cast<size_t>(logits.elements()));
  on.ops->CopyToHost(answer.logits.data(), logits.data, answer.logits.size() * sizeof(float));
  if (begun)
    answer.rows = on.ops->BeginSample(logits, rows)->Take();
  else
    answer.rows = sampled ? on.ops->Sample(logits, rows) : on.ops->Logprobs(logits, step.targets, 3);
  return answer;
}

}  // namespace baton::engine
