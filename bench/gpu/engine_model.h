// A whole model of random weights on a GPU, and steps that it is given: what gpu_engine measures.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/kv_memory.h"
#include "engine/model/model.h"
#include "kernels/ops.h"

namespace baton::bench {

using Clock = std::chrono::steady_clock;
inline double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Of the command line.
struct EngineOptions {
  std::string model, json, kv = "auto";
  bool deterministic = true, tiny = false;
  double seconds = 1e9;
};

/// What is run: steps of `steps` decodes behind `context` tokens, then behind `far` ones; prompts of so many tokens.
struct EnginePlan {
  std::vector<int> batches, far_batches, prompts;
  int context, far, rows, steps, tokens;
  explicit EnginePlan(bool tiny)
      : batches(tiny ? std::vector{1, 3} : std::vector{1, 2, 4, 8, 16, 32, 64, 128, 256}),
        far_batches(tiny ? std::vector{1} : std::vector{1, 8}),
        prompts(tiny ? std::vector{24} : std::vector{2048, 8192}),
        context(tiny ? 20 : 1024),
        far(tiny ? 90 : 16384),
        rows(tiny ? 64 : 8192),
        steps(tiny ? 3 : 48),
        tokens(far + 2 * steps + kWarmUp + 16) {}
  static constexpr int kWarmUp = 3;
  int most() const { return batches.back(); }
  int BlocksEach(int behind) const { return (behind + 2 * steps + kWarmUp) / kUnitTokens + 1; }
  int Blocks() const {
    return std::max({most() * BlocksEach(context), far_batches.back() * BlocksEach(far), rows / kUnitTokens + 1});
  }
};

struct Engine {
  std::unique_ptr<kernels::Ops> ops;
  std::unique_ptr<engine::Model> model;
  std::unique_ptr<engine::KvMemory> memory;
};

/// Its KV memory has blocks for all that is planned.
absl::StatusOr<Engine> LoadEngine(const EngineOptions& options, const EnginePlan& plan);

/// Sequences that lie side by side in the KV memory, `blocks_each` blocks for each.
class Sequences {
 public:
  Sequences(Engine& on, int count, int blocks_each, int first = 0) : on_(on), count_(count), stride_(blocks_each) {
    for (int i = 0; i < count * blocks_each; ++i) table_.push_back(first * blocks_each + i);
    for (int s = 0; s < count; ++s) {
      kernels::SampleRow row;
      row.top_p = 0.95f;
      row.seed = static_cast<uint64_t>(first + s);
      draws_.push_back(row);
    }
  }
  /// Gives a step of `rows` rows of each sequence behind its first `context` tokens. With `drawn` each has one row,
  /// whose token the step before it draws. `on_layer`: told of each layer whose KV has been asked for.
  absl::Status Give(int rows, int context, bool drawn, const std::function<void(int)>& on_layer = nullptr);
  /// Waits for the tokens of the step given first; the first sequence's.
  int32_t Take();
  std::span<const int32_t> table() const { return table_; }  ///< blocks of all sequences, in order

 private:
  Engine& on_;
  const int count_, stride_;
  std::vector<int32_t> table_, tokens_, row_start_, contexts_, last_rows_;
  std::vector<kernels::SampleRow> draws_;
  std::deque<std::unique_ptr<kernels::Draw>> under_way_;
};

}  // namespace baton::bench
