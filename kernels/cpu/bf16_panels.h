// A weight [N, K] in bf16 as right tiles (isa/bf16_table.h), for AMX and for AVX512_BF16: panels of 32 columns, zeros
// past N and K.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/aligned_vector.h"
#include "kernels/cpu/isa/bf16_table.h"
#include "kernels/cpu/pool.h"
#include "kernels/ops.h"

namespace baton::kernels::cpu {

class Bf16Panels final : public PackedLinear {
 public:
  /// Copies `weight` (f32, bf16 or f16, rows maybe padded; rounded to bf16) and `bias` (may be null).
  static absl::StatusOr<std::unique_ptr<Bf16Panels>> Make(const Tensor& weight, const float* bias,
                                                          const Bf16Table& table, Pool& pool);

  int64_t out_features() const override { return n_; }
  int64_t in_features() const override { return k_; }
  size_t bytes() const override { return memory_->bytes() + bias_.size() * sizeof(float); }

  /// out = x · Wᵀ + bias.  x [M, K] bf16, out [M, N] bf16 or f32; either may have padded rows. `staging`: memory of the
  /// caller, kept between calls.
  void Run(const Tensor& x, const Tensor& out, const Bf16Table& table, Pool& pool,
           AlignedVector<uint16_t>& staging) const;

  /// Row `row` of the weight, as packed: [K] bf16.
  void CopyRow(int64_t row, uint16_t* to) const;

 private:
  Bf16Panels() = default;
  int64_t panels() const { return (n_ + kBf16PanelColumns - 1) / kBf16PanelColumns; }
  int64_t steps() const { return (k_ + kBf16Depth - 1) / kBf16Depth; }
  int64_t panel_bytes() const { return steps() * kBf16Depth * kBf16PanelColumns * 2; }

  int64_t n_ = 0, k_ = 0;
  std::unique_ptr<Buffer> memory_;
  std::vector<float> bias_;
};

}  // namespace baton::kernels::cpu
