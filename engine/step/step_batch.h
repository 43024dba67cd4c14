// The rows of one step as every rank needs them: positions and blocks, but no tokens and no sampling state, which rank
// 0 keeps. Rank 0's executor derives it from the StepPlan.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/kv_memory.h"
#include "engine/model/model.h"
#include "engine/step/step_plan.h"
#include "kernels/ops.h"

namespace baton::engine {

struct StepBatch {
  static constexpr int kForm = 3;  ///< of its words: another one wherever Encode changes

  std::vector<BlockCopy> copies;                   ///< before anything else
  std::vector<int32_t> row_start{0};               ///< [sequences + 1]
  std::vector<int32_t> context;                    ///< [sequences]
  std::vector<int32_t> logit_rows;                 ///< ascending; a row may come again
  std::vector<std::vector<int32_t>> block_tables;  ///< per KV group: [sequences, stride]
  bool open = false;      ///< another step may follow before it ends; else it has ended before another is told
  bool followed = false;  ///< rank 0 follows its layers, so that no rank replays a record of it

  bool has_rows() const { return !context.empty(); }
  /// Copies stay.
  void DropRows();
  bool operator==(const StepBatch&) const = default;

  /// As 32-bit words, for ranks elsewhere.
  std::vector<int32_t> Encode() const;
  /// InvalidArgument: no encoded batch.
  static absl::StatusOr<StepBatch> Decode(std::span<const int32_t> words);
};

void RunCopies(const StepBatch& batch, KvMemory& memory, kernels::Ops& ops);

/// What rank 0 alone knows of a step's rows; the others have none of it.
struct RowTokens {
  std::span<const int32_t> ids;               ///< [T] as ForwardBatch::tokens
  int32_t drawn_rows = 0;                     ///< as ForwardBatch::drawn_rows
  std::span<const kernels::SampleRow> draws;  ///< as ForwardBatch::draws
};

/// Runs the rows.
absl::StatusOr<kernels::Tensor> RunRows(const StepBatch& batch, const RowTokens& tokens, Model& model, KvMemory& memory,
                                        const std::atomic<bool>& cancel, std::function<void(int)> on_layer_kv);

}  // namespace baton::engine
