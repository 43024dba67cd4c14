// A weight [N, K] laid out for linear_panel: panels of 64 columns, each [K][64], in the weight's own float type.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/isa/kernel_table.h"
#include "kernels/cpu/pool.h"
#include "kernels/ops.h"

namespace baton::kernels::cpu {

class PackedPanels final : public PackedLinear {
 public:
  /// Copies `weight` (f32, bf16 or f16, rows maybe padded) and `bias` (may be null).
  static absl::StatusOr<std::unique_ptr<PackedPanels>> Make(const Tensor& weight, const float* bias, Pool& pool);

  int64_t out_features() const override { return n_; }
  int64_t in_features() const override { return k_; }
  size_t bytes() const override { return memory_->bytes() + bias_.size() * sizeof(float); }

  int64_t panels() const { return (n_ + kPanelColumns - 1) / kPanelColumns; }
  DType dtype() const { return dtype_; }
  const void* Panel(int64_t p) const;
  /// [kPanelColumns] of panel p, or null.
  const float* Bias(int64_t p) const { return bias_.empty() ? nullptr : bias_.data() + p * kPanelColumns; }
  int ColumnsOf(int64_t p) const;
  /// Row `row` of the weight: [K] of dtype().
  void CopyRow(int64_t row, void* to) const;

 private:
  PackedPanels() = default;

  int64_t n_ = 0, k_ = 0;
  DType dtype_ = DType::kF32;
  std::unique_ptr<Buffer> memory_;
  std::vector<float> bias_;
};

}  // namespace baton::kernels::cpu
