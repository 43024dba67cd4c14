#include "kernels/cuda/host/weight_upload.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/device_failure.h"
#include "common/in_parts.h"
#include "common/status.h"
#include "kernels/cuda/host/device_memory.h"

namespace baton::cuda {
namespace {

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

/// Rows [first, first + count) of the weight, `row_stride` elements apart.
void Fill(const kernels::Tensor& weight, int64_t first, int64_t count, px::bf16* to, int64_t row_stride) {
  for (int64_t r = 0; r < count; ++r) {
    ToBf16(weight, first + r, to + r * row_stride);
    std::fill(to + r * row_stride + weight.cols(), to + (r + 1) * row_stride, px::bf16{0});
  }
}

/// The same by several threads, when there is enough to do.
void FillTogether(const kernels::Tensor& weight, int64_t first, int64_t count, px::bf16* to, int64_t row_stride) {
  constexpr int64_t kWorthAThread = 1 << 19;  // elements
  InParts(count, std::min(LoadThreads(), count * row_stride / kWorthAThread), [&](int64_t begin, int64_t end) {
    Fill(weight, first + begin, end - begin, to + begin * row_stride, row_stride);
  });
}

}  // namespace

absl::Status WeightUpload::Rows(const kernels::Tensor& weight, px::bf16* to, int64_t row_stride) {
  const size_t row_bytes = static_cast<size_t>(row_stride) * sizeof(px::bf16);
  BATON_RETURN_IF_ERROR(Reserve(std::max(half_bytes_, row_bytes)));
  for (int64_t first = 0; first < weight.rows();) {
    Half& half = Next();
    const auto count = std::min(weight.rows() - first, static_cast<int64_t>(half.memory.bytes() / row_bytes));
    auto* rows = static_cast<px::bf16*>(half.memory.data());
    FillTogether(weight, first, count, rows, row_stride);
    stream_.CopyAsync(to + first * row_stride, rows, static_cast<size_t>(count) * row_bytes);
    stream_.Record(half.copied);
    first += count;
  }
  return absl::OkStatus();
}

absl::Status WeightUpload::Bytes(const void* from, void* to, size_t bytes) {
  constexpr int64_t kWorthAThread = 1 << 20;
  BATON_RETURN_IF_ERROR(Reserve(half_bytes_));
  for (size_t at = 0; at < bytes;) {
    Half& half = Next();
    const auto count = static_cast<int64_t>(std::min(bytes - at, half.memory.bytes()));
    auto* const pinned = static_cast<char*>(half.memory.data());
    const char* const source = static_cast<const char*>(from) + at;
    InParts(count, std::min(LoadThreads(), count / kWorthAThread), [&](int64_t begin, int64_t end) {
      std::memcpy(pinned + begin, source + begin, static_cast<size_t>(end - begin));
    });
    stream_.CopyAsync(static_cast<char*>(to) + at, pinned, static_cast<size_t>(count));
    stream_.Record(half.copied);
    at += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

WeightUpload::Half& WeightUpload::Next() {
  Half& half = *halves_[next_++ % halves_.size()];
  EndIfDeviceFailed(half.copied.Synchronize());
  return half;
}

absl::Status WeightUpload::Reserve(size_t bytes) {
  if (halves_[0] != nullptr && halves_[0]->memory.bytes() >= bytes) return absl::OkStatus();
  Release();
  stream_.Bind();
  for (std::unique_ptr<Half>& half : halves_) {
    half = std::make_unique<Half>(bytes);
    const bool pinned = half->memory.data() != nullptr;
    const absl::Status made = CheckMade(half->copied);
    if (pinned && made.ok()) continue;
    Release();
    if (pinned) return made;
    return absl::ResourceExhaustedError(StrCat("loading weights needs ", halves_.size(), " × ", bytes,
                                               " bytes of pinned host memory, which the system refuses"));
  }
  return absl::OkStatus();
}

void WeightUpload::Release() {
  stream_.Synchronize();
  for (std::unique_ptr<Half>& half : halves_) half.reset();
}

}  // namespace baton::cuda
