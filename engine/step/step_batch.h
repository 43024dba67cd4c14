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
  std::vector<BlockCopy> copies;                   ///< before anything else
  std::vector<int32_t> row_start{0};               ///< [sequences + 1]
  std::vector<int32_t> context;                    ///< [sequences]
  std::vector<int32_t> logit_rows;                 ///< ascending; a row may come again
  std::vector<std::vector<int32_t>> block_tables;  ///< per KV group: [sequences, stride]

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

/// Runs the rows. `tokens` [T] are read on rank 0 only.
absl::StatusOr<kernels::Tensor> RunRows(const StepBatch& batch, std::span<const int32_t> tokens, Model& model,
                                        KvMemory& memory, const std::atomic<bool>& cancel,
                                        std::function<void(int)> on_layer_kv);

}  // namespace baton::engine
