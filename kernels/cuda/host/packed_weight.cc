#include "kernels/cuda/host/packed_weight.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "common/device_failure.h"
#include "common/half.h"
#include "common/status.h"
#include "kernels/cuda/host/device_memory.h"
#include "kernels/cuda/linear/quant_layout.h"
#include "kernels/cuda/moe/moe_limits.h"
#include "kernels/packed_size.h"

namespace baton::cuda {

static_assert(kGemmPadN == kernels::kDeviceShape.rows && kGemmPadK == kernels::kDeviceShape.columns);

namespace {

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

absl::StatusOr<std::unique_ptr<gpu::Memory>> Upload(gpu::Stream& stream, const void* values, size_t bytes,
                                                    std::string_view what) {
  if (values == nullptr) return nullptr;
  BATON_ASSIGN_OR_RETURN(gpu::Memory memory, AllocateOnDevice(bytes, what));
  stream.Upload(memory.data(), values, bytes);
  return std::make_unique<gpu::Memory>(std::move(memory));
}

int64_t PaddedElements(int64_t n, int64_t k) { return RoundUp(n, kGemmPadN) * RoundUp(k, kGemmPadK); }

absl::StatusOr<gpu::Memory> RoomForWeight(size_t bytes, int64_t n, int64_t k) {
  return AllocateOnDevice(bytes, StrCat("a weight of ", n, " × ", k));
}

}  // namespace

PackedWeight::PackedWeight(gpu::Stream& stream, WeightFormat format, int64_t n, int64_t k, gpu::Memory weight)
    : stream_(stream), format_(format), n_(n), k_(k), in_features_(k), weight_(std::move(weight)) {}

// What a library adds is in its outputs' type, or in bf16.
absl::Status PackedWeight::KeepBias(const kernels::OpsTraits& traits, const float* bias) {
  if (kernels::LibraryBiasBytes(traits, n_, bias != nullptr) == 0) return absl::OkStatus();
  std::vector<uint16_t> halves;
  for (int64_t i = 0; i < n_; ++i) halves.push_back(Bf16OfFloat(bias[i]));
  keeps_bias_ = std::ranges::equal(halves, std::span(bias, halves.size()), {}, FloatOfBf16);
  BATON_ASSIGN_OR_RETURN(library_bias_, Upload(stream_, halves.data(), halves.size() * sizeof(uint16_t), "a bias"));
  return absl::OkStatus();
}

// Scales of 128 × 128 weights are known by what they are: those of all 128 outputs agree.
absl::Status PackedWeight::KeepScales(const kernels::OpsTraits& traits, const kernels::QuantizedWeight& w) {
  const int64_t count = kernels::LibraryScales(w.n, w.k, w.group);
  if (traits.library_bytes == 0 || !w.rounding || count == 0) return absl::OkStatus();
  const auto groups = static_cast<size_t>(w.k / w.group), n = static_cast<size_t>(w.n);
  std::vector<float> scales(static_cast<size_t>(count));
  if (w.group == w.k) {
    scales = w.scales;
    const bool one = std::ranges::adjacent_find(scales, std::ranges::not_equal_to()) == scales.end();
    library_numbers_ =
        one && w.rounding.kind == kernels::InputRounding::Kind::kFixed ? LtNumbers::kOneScale : LtNumbers::kRowScales;
  } else {
    const auto pitch = static_cast<size_t>(kernels::LibraryBlockPitch(w.k));
    bool blocks = true;
    for (size_t row = 0; row < n; ++row) {
      const float* const of_row = &w.scales[row * groups];
      float* const of_block = &scales[row / kernels::kLibraryBlock * pitch];
      if (row % kernels::kLibraryBlock == 0) std::copy_n(of_row, groups, of_block);
      blocks = blocks && std::equal(of_row, of_row + groups, of_block);
    }
    if (blocks) library_numbers_ = LtNumbers::kBlockScales;
  }
  BATON_ASSIGN_OR_RETURN(library_scales_,
                         Upload(stream_, scales.data(), scales.size() * sizeof(float), "a weight's scales"));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PackedWeight>> PackedWeight::Make(gpu::Stream& stream, WeightUpload& upload,
                                                                 const kernels::OpsTraits& traits,
                                                                 const kernels::Tensor& weight, const float* bias) {
  stream.Bind();
  const int64_t n = weight.rows(), k = weight.cols();
  BATON_CHECK(k % 8 == 0, "in_features ", k, ": a multiple of 8 is needed");
  const size_t bytes = static_cast<size_t>(PaddedElements(n, k)) * sizeof(px::bf16);
  BATON_ASSIGN_OR_RETURN(gpu::Memory room, RoomForWeight(bytes, n, k));
  std::unique_ptr<PackedWeight> packed(new PackedWeight(stream, WeightFormat::kBf16, n, k, std::move(room)));
  packed->row_stride_ = RoundUp(k, kGemmPadK);
  stream.FillAsync(packed->weight_.data(), 0, bytes);
  BATON_RETURN_IF_ERROR(upload.Rows(weight, static_cast<px::bf16*>(packed->weight_.data()), packed->row_stride_));
  BATON_ASSIGN_OR_RETURN(packed->bias_, Upload(stream, bias, static_cast<size_t>(n) * sizeof(float), "a bias"));
  BATON_RETURN_IF_ERROR(packed->KeepBias(traits, bias));
  packed->library_numbers_ = LtNumbers::kBf16;
  EndIfDeviceFailed(stream.Synchronize());
  return packed;
}

absl::StatusOr<std::unique_ptr<PackedWeight>> PackedWeight::Make(gpu::Stream& stream, WeightUpload& upload,
                                                                 const kernels::OpsTraits& traits,
                                                                 const kernels::QuantizedWeight& weight,
                                                                 const float* bias) {
  stream.Bind();
  const QuantLayout layout = LayOutQuantized(weight);
  const size_t bytes = layout.words.size() * sizeof(px::U128), meta_bytes = layout.meta.size() * sizeof(QuantMeta);
  const int64_t planned = kernels::PackedCodeBytes(weight.n, weight.k, weight.bits, weight.group,
                                                   static_cast<bool>(weight.rounding), false);
  BATON_CHECK(static_cast<int64_t>(bytes + meta_bytes) == planned, bytes, " + ", meta_bytes, " bytes, planned ",
              planned);
  BATON_ASSIGN_OR_RETURN(gpu::Memory room, RoomForWeight(bytes, weight.n, weight.k));
  std::unique_ptr<PackedWeight> packed(new PackedWeight(stream, FormatOf(weight), weight.n, weight.k, std::move(room)));
  packed->group_ = weight.group;
  packed->rounding_ = weight.rounding;
  BATON_ASSIGN_OR_RETURN(packed->meta_, Upload(stream, layout.meta.data(), meta_bytes, "a weight's scales"));
  if (!weight.inputs.empty()) {
    packed->in_features_ = weight.in_features();
    BATON_ASSIGN_OR_RETURN(packed->inputs_, Upload(stream, weight.inputs.data(), weight.inputs.size() * sizeof(int32_t),
                                                   "the order of a weight's inputs"));
  }
  BATON_RETURN_IF_ERROR(upload.Bytes(layout.words.data(), packed->weight_.data(), bytes));
  BATON_ASSIGN_OR_RETURN(packed->bias_, Upload(stream, bias, static_cast<size_t>(weight.n) * sizeof(float), "a bias"));
  BATON_RETURN_IF_ERROR(packed->KeepScales(traits, weight));
  if (weight.rounding) BATON_RETURN_IF_ERROR(packed->KeepBias(traits, bias));
  EndIfDeviceFailed(stream.Synchronize());
  return packed;
}

PackedExpertWeights::PackedExpertWeights(gpu::Stream& stream, int experts, int64_t n, int64_t k, gpu::Memory weight)
    : stream_(stream),
      experts_(experts),
      n_(n),
      k_(k),
      row_stride_(RoundUp(k, kGemmPadK)),
      expert_stride_(PaddedElements(n, k)),
      weight_(std::move(weight)) {}

absl::StatusOr<std::unique_ptr<kernels::PackedExperts>> PackedExpertWeights::Make(gpu::Stream& stream,
                                                                                  WeightUpload& upload,
                                                                                  const kernels::Tensor& weights,
                                                                                  const float* biases) {
  BATON_CHECK(weights.rank == 3 && weights.shape[2] % 8 == 0 && weights.rows() >= 1 && weights.rows() <= kMaxExperts,
              "weights of rank ", weights.rank, ", ", weights.rows(), " experts, in_features ", weights.shape[2]);
  stream.Bind();
  const int64_t experts = weights.rows(), n = weights.shape[1], k = weights.shape[2];
  BATON_ASSIGN_OR_RETURN(
      gpu::Memory room,
      RoomForWeight(static_cast<size_t>(experts * PaddedElements(n, k)) * sizeof(px::bf16), experts * n, k));
  std::unique_ptr<PackedExpertWeights> packed(
      new PackedExpertWeights(stream, static_cast<int>(experts), n, k, std::move(room)));
  stream.FillAsync(packed->weight_.data(), 0, packed->weight_.bytes());
  for (int64_t e = 0; e < experts; ++e) {
    BATON_RETURN_IF_ERROR(upload.Rows(kernels::Tensor(weights.Rows(e, 1).data, weights.dtype, {n, k}),
                                      static_cast<px::bf16*>(packed->weight_.data()) + e * packed->expert_stride_,
                                      packed->row_stride_));
  }
  BATON_ASSIGN_OR_RETURN(packed->bias_,
                         Upload(stream, biases, static_cast<size_t>(experts * n) * sizeof(float), "experts' biases"));
  EndIfDeviceFailed(stream.Synchronize());
  return packed;
}

}  // namespace baton::cuda
