#include "kernels/cpu/packed_panels.h"

#include <algorithm>

#include "common/check.h"
#include "common/status.h"
#include "kernels/cpu/cpu_memory.h"
#include "kernels/packed_size.h"

namespace baton::kernels::cpu {
namespace {

// Transposes columns [first, first + count) of the panel: row n of the weight becomes column n of [K][64].
template <class T>
void PackPanel(const Tensor& weight, int64_t first, int64_t count, T* panel) {
  constexpr int64_t kStrip = 16;  // k per strip: one cache line of each source row
  const int64_t k = weight.shape[1];
  for (int64_t start = 0; start < k; start += kStrip) {
    const int64_t end = std::min(k, start + kStrip);
    for (int64_t c = 0; c < count; ++c) {
      const T* row = weight.Data<T>() + (first + c) * weight.row_stride;
      for (int64_t i = start; i < end; ++i) panel[i * kPanelColumns + c] = row[i];
    }
  }
}

}  // namespace

static_assert(kPanelColumns == kF32HostShape.rows);

absl::StatusOr<std::unique_ptr<PackedPanels>> PackedPanels::Make(const Tensor& weight, const float* bias, Pool& pool) {
  BATON_CHECK(weight.rank == 2 && weight.shape[0] > 0 && weight.shape[1] > 0, "weight of rank ", weight.rank);
  auto packed = std::unique_ptr<PackedPanels>(new PackedPanels);
  packed->n_ = weight.shape[0];
  packed->k_ = weight.shape[1];
  packed->dtype_ = weight.dtype;
  const size_t element = DTypeBytes(weight.dtype);
  BATON_CHECK(weight.dtype == DType::kF32 || weight.dtype == DType::kBF16 || weight.dtype == DType::kF16, "weight of ",
              DTypeName(weight.dtype));
  const int64_t panels = packed->panels();
  BATON_ASSIGN_OR_RETURN(packed->memory_,
                         AllocateHost(static_cast<size_t>(panels * packed->k_ * kPanelColumns) * element));
  pool.Run(panels, [&](int64_t p) {
    void* panel = const_cast<void*>(packed->Panel(p));
    const int64_t first = p * kPanelColumns, count = packed->ColumnsOf(p);
    if (element == 4)
      PackPanel(weight, first, count, static_cast<uint32_t*>(panel));
    else
      PackPanel(weight, first, count, static_cast<uint16_t*>(panel));
  });
  if (bias != nullptr) {
    packed->bias_.assign(static_cast<size_t>(panels * kPanelColumns), 0.0f);
    std::copy_n(bias, packed->n_, packed->bias_.begin());
  }
  return packed;
}

const void* PackedPanels::Panel(int64_t p) const {
  const int64_t bytes = k_ * kPanelColumns * static_cast<int64_t>(DTypeBytes(dtype_));
  return static_cast<const char*>(memory_->data()) + p * bytes;
}

void PackedPanels::CopyRow(int64_t row, void* to) const {
  auto copy = [&]<class T>(const T* panel) {
    for (int64_t i = 0; i < k_; ++i) static_cast<T*>(to)[i] = panel[i * kPanelColumns + row % kPanelColumns];
  };
  const void* panel = Panel(row / kPanelColumns);
  if (DTypeBytes(dtype_) == 4)
    copy(static_cast<const uint32_t*>(panel));
  else
    copy(static_cast<const uint16_t*>(panel));
}

int PackedPanels::ColumnsOf(int64_t p) const {
  return static_cast<int>(std::min<int64_t>(kPanelColumns, n_ - p * kPanelColumns));
}

}  // namespace baton::kernels::cpu
