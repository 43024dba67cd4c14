// A model and an Ops for engine tests without kernels. What a row's logits are depends on every KV entry the row may
// see, read through the block tables, so a wrong block, a missed copy or an early release changes the answer.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/cache/kv_memory.h"
#include "engine/model/model.h"
#include "kernels/ops.h"

namespace baton::engine {

inline constexpr int32_t kFakeVocab = 48;

class FakeModel;

/// Memory, block copies, sampling and log-softmax on the host; the rest dies. `on_sample` sees every row to sample.
/// With `device` draws are taken later, as from a device that computes that model: it alone knows the tokens meanwhile.
std::unique_ptr<kernels::Ops> MakeFakeOps(std::function<void(const kernels::SampleRow&)> on_sample = {},
                                          FakeModel* device = nullptr);

/// One paged group, and a sliding-window group when `window_tokens` > 0. `dtype`: entries are four numbers of that
/// type, f32 or bf16, which hold the same values; else 8 bytes that mean nothing as numbers.
/// `layers` in each group.
KvLayout FakeLayout(int32_t tokens_per_block = 16, int32_t window_tokens = 0, std::optional<DType> dtype = {},
                    int layers = 1);

class FakeModel final : public Model {
 public:
  /// `numerics`: models of different numerics write different KV. `heads`: so many layers of `layout` are the heads of
  /// one layer of the model, so that ranks which share its heads out can keep theirs in one memory.
  explicit FakeModel(KvLayout layout, uint64_t numerics = 0, int heads = 1);
  const ModelConfig& config() const override { return config_; }
  const KvLayout& kv_layout() const override { return layout_; }
  size_t weight_bytes() const override { return 0; }
  /// Keeps the digests of the KV planes as the operations do. Looks at `cancel` once, half way through the rows.
  absl::StatusOr<kernels::Tensor> Forward(const ForwardBatch& batch, std::span<const KvGroupView> kv,
                                          const std::atomic<bool>& cancel) override;

  int64_t rows_run = 0;
  int64_t rows_named = 0;      ///< of them, those whose token was a kernels::DrawnToken
  std::vector<int32_t> drawn;  ///< the tokens of the last draw, for those
  std::vector<int32_t> taken;  ///< the tokens of the last step, by its rows
  int64_t steps = 0;           ///< of which Forward was called
  /// When set, called when the host waits for what the device was asked for in its first so many steps.
  std::function<void(int64_t steps)> on_wait;
  /// When set, called at the start of every Forward (tests block or fail here).
  std::function<absl::Status()> before_forward;

 private:
  int32_t TokenOf(const ForwardBatch& batch, int32_t row) const;

  KvLayout layout_;
  const uint64_t numerics_;
  const uint32_t heads_;
  ModelConfig config_;
  std::vector<float> logits_;
};

}  // namespace baton::engine
