// Weights on the device, as the GEMMs and the GEMV read them.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "kernels/cuda/host/lt_linear.h"
#include "kernels/cuda/host/weight_upload.h"
#include "kernels/cuda/linear/gemm_e4m3.cuh"
#include "kernels/cuda/linear/gemv.cuh"
#include "kernels/ops.h"

namespace baton::cuda {

/// bf16: [n rounded up to kGemmPadN, k rounded up to kGemmPadK], zero beyond n and k. Quantized: quant_layout.h. A
/// row's bits do not depend on M by construction of the GEMM (one accumulator per output, k in order), so there is no
/// self-test here; tests hold it.
class PackedWeight final : public kernels::PackedLinear {
 public:
  ~PackedWeight() override { stream_.Synchronize(); }
  /// weight [n, k] f32, bf16 or f16 in host memory; k a multiple of 8. bias [n] or null. Where a library may multiply
  /// (`traits`), with what it reads in an order or a type of its own.
  static absl::StatusOr<std::unique_ptr<PackedWeight>> Make(gpu::Stream& stream, WeightUpload& upload,
                                                            const kernels::OpsTraits& traits,
                                                            const kernels::Tensor& weight, const float* bias);
  static absl::StatusOr<std::unique_ptr<PackedWeight>> Make(gpu::Stream& stream, WeightUpload& upload,
                                                            const kernels::OpsTraits& traits,
                                                            const kernels::QuantizedWeight& weight, const float* bias);

  int64_t out_features() const override { return n_; }
  int64_t in_features() const override { return in_features_; }
  size_t bytes() const override {
    size_t bytes = weight_.bytes();
    for (const auto& memory : {&meta_, &inputs_, &bias_, &library_bias_, &library_scales_})
      bytes += *memory != nullptr ? (*memory)->bytes() : 0;
    return bytes;
  }
  int64_t k() const { return k_; }  ///< inputs that are kept: in_features(), or those of inputs()
  /// [k] the column of x that input k multiplies, −1: none. Null: k itself.
  const int32_t* inputs() const { return inputs_ != nullptr ? static_cast<const int32_t*>(inputs_->data()) : nullptr; }
  WeightFormat format() const { return format_; }
  const void* data() const { return weight_.data(); }
  int64_t row_stride() const { return row_stride_; }  ///< elements; bf16 only
  const QuantMeta* meta() const { return meta_ != nullptr ? static_cast<const QuantMeta*>(meta_->data()) : nullptr; }
  int group() const { return group_; }
  const kernels::InputRounding& rounding() const { return rounding_; }
  bool rounds_inputs() const override { return static_cast<bool>(rounding_); }
  const float* bias() const { return bias_ != nullptr ? static_cast<const float*>(bias_->data()) : nullptr; }
  /// What a library may multiply; nullopt: nothing of it.
  std::optional<LtNumbers> library_numbers() const { return library_numbers_; }
  const float* library_scales() const { return static_cast<const float*>(library_scales_->data()); }
  /// The bias in bf16. Null: there is none, or bf16 has not all of its numbers.
  const void* library_bias() const { return keeps_bias_ ? library_bias_->data() : nullptr; }

 private:
  PackedWeight(gpu::Stream& stream, WeightFormat format, int64_t n, int64_t k, gpu::Memory weight);
  absl::Status KeepBias(const kernels::OpsTraits& traits, const float* bias);
  absl::Status KeepScales(const kernels::OpsTraits& traits, const kernels::QuantizedWeight& weight);
  gpu::Stream& stream_;
  WeightFormat format_;
  int64_t n_, k_, in_features_, row_stride_ = 0;
  int group_ = 0;
  kernels::InputRounding rounding_;
  gpu::Memory weight_;
  std::unique_ptr<gpu::Memory> meta_, inputs_, bias_, library_bias_, library_scales_;
  bool keeps_bias_ = false;
  std::optional<LtNumbers> library_numbers_;
};

/// [experts][n rounded up to kGemmPadN, k rounded up to kGemmPadK] bf16, zero beyond n and k; biases [experts, n].
class PackedExpertWeights final : public kernels::PackedExperts {
 public:
  ~PackedExpertWeights() override { stream_.Synchronize(); }
  /// weights [experts, n, k] f32, bf16 or f16 in host memory; k a multiple of 8. biases [experts, n] or null.
  static absl::StatusOr<std::unique_ptr<kernels::PackedExperts>> Make(gpu::Stream& stream, WeightUpload& upload,
                                                                      const kernels::Tensor& weights,
                                                                      const float* biases);

  int experts() const override { return experts_; }
  int64_t out_features() const override { return n_; }
  int64_t in_features() const override { return k_; }
  size_t bytes() const override { return weight_.bytes() + (bias_ != nullptr ? bias_->bytes() : 0); }
  const px::bf16* data() const { return static_cast<const px::bf16*>(weight_.data()); }
  int64_t row_stride() const { return row_stride_; }
  int64_t expert_stride() const { return expert_stride_; }
  const float* biases() const { return bias_ != nullptr ? static_cast<const float*>(bias_->data()) : nullptr; }

 private:
  PackedExpertWeights(gpu::Stream& stream, int experts, int64_t n, int64_t k, gpu::Memory weight);
  gpu::Stream& stream_;
  int experts_;
  int64_t n_, k_, row_stride_, expert_stride_;
  gpu::Memory weight_;
  std::unique_ptr<gpu::Memory> bias_;
};

}  // namespace baton::cuda
