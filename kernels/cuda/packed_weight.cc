#include "kernels/cuda/packed_weight.h"

#include <cstring>
#include <vector>

#include "common/status.h"

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

}  // namespace

PackedWeight::PackedWeight(gpu::Stream& stream, int64_t n, int64_t k)
    : stream_(stream),
      n_(n),
      k_(k),
      row_stride_(RoundUp(k, kGemmPadK)),
      weight_(static_cast<size_t>(RoundUp(n, kGemmPadN) * row_stride_) * sizeof(px::bf16)) {}

absl::StatusOr<std::unique_ptr<kernels::PackedLinear>> PackedWeight::Make(gpu::Stream& stream,
                                                                          const kernels::Tensor& weight,
                                                                          const float* bias) {
  const int64_t n = weight.rows(), k = weight.cols();
  BATON_CHECK(k % 8 == 0, "in_features ", k, ": a multiple of 8 is needed");
  const size_t need = static_cast<size_t>(RoundUp(n, kGemmPadN) * RoundUp(k, kGemmPadK)) * sizeof(px::bf16),
               free = gpu::CurrentDevice().free_bytes;
  if (need > free)
    return absl::ResourceExhaustedError(
        StrCat("a weight of ", n, " × ", k, " needs ", need, " bytes, ", free, " are free"));
  std::unique_ptr<PackedWeight> packed(new PackedWeight(stream, n, k));
  stream.FillAsync(packed->weight_.data(), 0, packed->weight_.bytes());
  constexpr int64_t kRowsPerCopy = 256;
  std::vector<px::bf16> rows;
  for (int64_t first = 0; first < n; first += kRowsPerCopy) {
    const int64_t count = std::min(kRowsPerCopy, n - first);
    rows.assign(static_cast<size_t>(count * packed->row_stride_), px::bf16{0});
    for (int64_t r = 0; r < count; ++r) ToBf16(weight, first + r, rows.data() + r * packed->row_stride_);
    stream.Upload(static_cast<px::bf16*>(packed->weight_.data()) + first * packed->row_stride_, rows.data(),
                  rows.size() * sizeof(px::bf16));
  }
  if (bias != nullptr) {
    packed->bias_ = std::make_unique<gpu::Memory>(static_cast<size_t>(n) * sizeof(float));
    stream.Upload(packed->bias_->data(), bias, packed->bias_->bytes());
  }
  const std::string error = stream.Synchronize();
  if (!error.empty()) return absl::InternalError(error);
  return packed;
}

}  // namespace baton::cuda
