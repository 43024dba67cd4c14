#include "kernels/cuda/host/packed_weight.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/status.h"
#include "kernels/cuda/linear/quant_layout.h"
#include "kernels/cuda/moe/moe_limits.h"

namespace baton::cuda {
namespace {

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

void ToBf16(const kernels::Tensor& from, int64_t row, px::bf16* to) {
  const int64_t at = row * from.row_stride, n = from.cols();
  switch (from.dtype) {
    case DType::kBF16: std::memcpy(to, from.Data<const px::bf16>() + at, static_cast<size_t>(n) * 2); return;
    case DType::kF32:
      for (int64_t i = 0; i < n; ++i) to[i] = px::FromFloat<px::bf16>(from.Data<const float>()[at + i]);
      return;
    case DType::kF16:
      for (int64_t i = 0; i < n; ++i) to[i] = px::FromFloat<px::bf16>(px::ToFloat(from.Data<const px::f16>()[at + i]));
      return;
    default: BATON_CHECK(false, "weights of ", DTypeName(from.dtype));
  }
}

/// Row after row from host memory to the device, zero up to `row_stride`.
void UploadRows(gpu::Stream& stream, const kernels::Tensor& weight, px::bf16* to, int64_t row_stride) {
  constexpr int64_t kRowsPerCopy = 256;
  std::vector<px::bf16> rows;
  for (int64_t first = 0; first < weight.rows(); first += kRowsPerCopy) {
    const int64_t count = std::min(kRowsPerCopy, weight.rows() - first);
    rows.assign(static_cast<size_t>(count * row_stride), px::bf16{0});
    for (int64_t r = 0; r < count; ++r) ToBf16(weight, first + r, rows.data() + r * row_stride);
    stream.Upload(to + first * row_stride, rows.data(), rows.size() * sizeof(px::bf16));
  }
}

std::unique_ptr<gpu::Memory> UploadFloats(gpu::Stream& stream, const float* values, int64_t n) {
  if (values == nullptr) return nullptr;
  auto memory = std::make_unique<gpu::Memory>(static_cast<size_t>(n) * sizeof(float));
  stream.Upload(memory->data(), values, memory->bytes());
  return memory;
}

int64_t PaddedElements(int64_t n, int64_t k) { return RoundUp(n, kGemmPadN) * RoundUp(k, kGemmPadK); }

absl::Status CheckRoom(size_t need, int64_t n, int64_t k) {
  const size_t free = gpu::CurrentDevice().free_bytes;
  if (need <= free) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      StrCat("a weight of ", n, " × ", k, " needs ", need, " bytes, ", free, " are free"));
}

absl::Status Wait(gpu::Stream& stream) {
  const std::string error = stream.Synchronize();
  return error.empty() ? absl::OkStatus() : absl::InternalError(error);
}

}  // namespace

PackedWeight::PackedWeight(gpu::Stream& stream, GemvWeight format, int64_t n, int64_t k, size_t bytes)
    : stream_(stream), format_(format), n_(n), k_(k), weight_(bytes) {}

absl::StatusOr<std::unique_ptr<kernels::PackedLinear>> PackedWeight::Make(gpu::Stream& stream,
                                                                          const kernels::Tensor& weight,
                                                                          const float* bias) {
  const int64_t n = weight.rows(), k = weight.cols();
  BATON_CHECK(k % 8 == 0, "in_features ", k, ": a multiple of 8 is needed");
  const size_t bytes = static_cast<size_t>(PaddedElements(n, k)) * sizeof(px::bf16);
  BATON_RETURN_IF_ERROR(CheckRoom(bytes, n, k));
  std::unique_ptr<PackedWeight> packed(new PackedWeight(stream, GemvWeight::kBf16, n, k, bytes));
  packed->row_stride_ = RoundUp(k, kGemmPadK);
  stream.FillAsync(packed->weight_.data(), 0, bytes);
  UploadRows(stream, weight, static_cast<px::bf16*>(packed->weight_.data()), packed->row_stride_);
  packed->bias_ = UploadFloats(stream, bias, n);
  BATON_RETURN_IF_ERROR(Wait(stream));
  return packed;
}

absl::StatusOr<std::unique_ptr<kernels::PackedLinear>> PackedWeight::Make(gpu::Stream& stream,
                                                                          const kernels::QuantizedWeight& weight,
                                                                          const float* bias) {
  const QuantLayout layout = LayOutQuantized(weight);
  const size_t bytes = layout.words.size() * sizeof(px::U128), meta_bytes = layout.meta.size() * sizeof(QuantMeta);
  BATON_RETURN_IF_ERROR(CheckRoom(bytes + meta_bytes, weight.n, weight.k));
  const GemvWeight format = weight.bits == 4 ? GemvWeight::kInt4 : GemvWeight::kInt8;
  std::unique_ptr<PackedWeight> packed(new PackedWeight(stream, format, weight.n, weight.k, bytes));
  packed->group_ = weight.group;
  packed->meta_ = std::make_unique<gpu::Memory>(meta_bytes);
  stream.Upload(packed->weight_.data(), layout.words.data(), bytes);
  stream.Upload(packed->meta_->data(), layout.meta.data(), meta_bytes);
  packed->bias_ = UploadFloats(stream, bias, weight.n);
  BATON_RETURN_IF_ERROR(Wait(stream));
  return packed;
}

PackedExpertWeights::PackedExpertWeights(gpu::Stream& stream, int experts, int64_t n, int64_t k)
    : stream_(stream),
      experts_(experts),
      n_(n),
      k_(k),
      row_stride_(RoundUp(k, kGemmPadK)),
      expert_stride_(PaddedElements(n, k)),
      weight_(static_cast<size_t>(experts * expert_stride_) * sizeof(px::bf16)) {}

absl::StatusOr<std::unique_ptr<kernels::PackedExperts>> PackedExpertWeights::Make(gpu::Stream& stream,
                                                                                  const kernels::Tensor& weights,
                                                                                  const float* biases) {
  BATON_CHECK(weights.rank == 3 && weights.shape[2] % 8 == 0 && weights.rows() >= 1 && weights.rows() <= kMaxExperts,
              "weights of rank ", weights.rank, ", ", weights.rows(), " experts, in_features ", weights.shape[2]);
  const int64_t experts = weights.rows(), n = weights.shape[1], k = weights.shape[2];
  BATON_RETURN_IF_ERROR(
      CheckRoom(static_cast<size_t>(experts * PaddedElements(n, k)) * sizeof(px::bf16), experts * n, k));
  std::unique_ptr<PackedExpertWeights> packed(new PackedExpertWeights(stream, static_cast<int>(experts), n, k));
  stream.FillAsync(packed->weight_.data(), 0, packed->weight_.bytes());
  for (int64_t e = 0; e < experts; ++e) {
    UploadRows(stream, kernels::Tensor(weights.Rows(e, 1).data, weights.dtype, {n, k}),
               static_cast<px::bf16*>(packed->weight_.data()) + e * packed->expert_stride_, packed->row_stride_);
  }
  packed->bias_ = UploadFloats(stream, biases, experts * n);
  BATON_RETURN_IF_ERROR(Wait(stream));
  return packed;
}

}  // namespace baton::cuda
