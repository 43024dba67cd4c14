// A dense weight on the device in bf16, padded to what the GEMM reads.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/gemm.cuh"
#include "kernels/ops.h"

namespace baton::cuda {

/// [n rounded up to kGemmPadN, k rounded up to kGemmPadK], zero beyond n and k. A row's bits do not depend on M by
/// construction of the GEMM (one accumulator per output, k in order), so there is no self-test here; tests hold it.
class PackedWeight final : public kernels::PackedLinear {
 public:
  ~PackedWeight() override { stream_.Synchronize(); }
  /// weight [n, k] f32, bf16 or f16 in host memory; k a multiple of 8. bias [n] or null.
  static absl::StatusOr<std::unique_ptr<kernels::PackedLinear>> Make(gpu::Stream& stream, const kernels::Tensor& weight,
                                                                     const float* bias);

  int64_t out_features() const override { return n_; }
  int64_t in_features() const override { return k_; }
  size_t bytes() const override { return weight_.bytes() + (bias_ != nullptr ? bias_->bytes() : 0); }
  const px::bf16* data() const { return static_cast<const px::bf16*>(weight_.data()); }
  const float* bias() const { return bias_ != nullptr ? static_cast<const float*>(bias_->data()) : nullptr; }
  int64_t row_stride() const { return row_stride_; }

 private:
  PackedWeight(gpu::Stream& stream, int64_t n, int64_t k);
  gpu::Stream& stream_;
  int64_t n_, k_, row_stride_;
  gpu::Memory weight_;
  std::unique_ptr<gpu::Memory> bias_;
};

}  // namespace baton::cuda
