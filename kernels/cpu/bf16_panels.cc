#include "kernels/cpu/bf16_panels.h"

#include <algorithm>

#include "common/check.h"
#include "common/status.h"
#include "kernels/cpu/cpu_memory.h"
#include "kernels/packed_size.h"

namespace baton::kernels::cpu {
namespace {

// From here on arithmetic costs, below it reading the weights does.
constexpr int64_t kManyRows = 65;

// What one item does. Few rows: panels come from memory, asked for well ahead, in items small enough that threads share
// a narrow layer evenly. Many: a group of panels stays in the second-level cache while the rows pass.
struct Cut {
  int64_t rows, panel_bytes, left_ahead, right_ahead;
};
constexpr Cut kFew = {kManyRows, 128 << 10, 0, 8 << 10}, kMany = {256, 512 << 10, 2 << 10, 4 << 10};

}  // namespace

static_assert(kBf16PanelColumns == kBf16HostShape.rows && kBf16Depth == kBf16HostShape.columns);

absl::StatusOr<std::unique_ptr<Bf16Panels>> Bf16Panels::Make(const Tensor& weight, const float* bias,
                                                             const Bf16Table& table, Pool& pool) {
  BATON_CHECK(weight.rank == 2 && weight.shape[0] > 0 && weight.shape[1] > 0, "weight of rank ", weight.rank);
  auto made = std::unique_ptr<Bf16Panels>(new Bf16Panels);
  made->n_ = weight.shape[0];
  made->k_ = weight.shape[1];
  BATON_ASSIGN_OR_RETURN(made->memory_, AllocateHost(static_cast<size_t>(made->panels() * made->panel_bytes())));
  const int64_t n = made->n_, k = made->k_, element = static_cast<int64_t>(DTypeBytes(weight.dtype));
  const int64_t tile_bytes = kBf16PanelColumns * kBf16Depth;  // 16 columns × 32 k × 2 bytes
  pool.Run(2 * made->panels(), [&](int64_t half) {
    const int64_t first = half * (kBf16PanelColumns / 2);
    const int columns = static_cast<int>(std::clamp<int64_t>(n - first, 0, kBf16PanelColumns / 2));
    AlignedVector<uint16_t> rows(static_cast<size_t>(columns * k));
    for (int c = 0; c < columns; ++c) {
      const char* from = static_cast<const char*>(weight.data) + (first + c) * weight.row_stride * element;
      table.kernels.convert(from, weight.dtype, 1.0f, rows.data() + c * k, DType::kBF16, static_cast<int>(k));
    }
    char* to = static_cast<char*>(made->memory_->data()) + half / 2 * made->panel_bytes() + half % 2 * tile_bytes;
    table.pack_columns(rows.data(), k, columns, k, to, 2 * tile_bytes);
  });
  if (bias != nullptr) made->bias_.assign(bias, bias + n);
  return made;
}

void Bf16Panels::Run(const Tensor& x, const Tensor& out, const Bf16Table& table, Pool& pool,
                     AlignedVector<uint16_t>& staging) const {
  BATON_CHECK(x.dtype == DType::kBF16 && x.cols() == k_ && out.cols() == n_ && x.rows() == out.rows(), "x [", x.rows(),
              ", ", x.cols(), "] ", DTypeName(x.dtype), ", weight [", n_, ", ", k_, "], out [", out.rows(), ", ",
              out.cols(), "]");
  const int64_t rows = x.rows(), row_elements = steps() * kBf16Depth;
  const int64_t row_blocks = (rows + kBf16Rows - 1) / kBf16Rows;
  staging.resize(static_cast<size_t>(row_blocks * kBf16Rows * row_elements));
  auto pack = [&](int64_t block) {
    const int64_t first = block * kBf16Rows;
    table.pack_rows(x.Data<uint16_t>() + first * x.row_stride, x.row_stride,
                    static_cast<int>(std::min<int64_t>(kBf16Rows, rows - first)), k_,
                    staging.data() + first * row_elements);
  };
  const Cut& cut = rows < kManyRows ? kFew : kMany;
  if (rows < kManyRows) {
    for (int64_t block = 0; block < row_blocks; ++block) pack(block);
  } else {
    pool.Run(row_blocks, pack);
  }
  const int64_t group = std::max<int64_t>(1, cut.panel_bytes / panel_bytes()), groups = (panels() + group - 1) / group;
  const int64_t runs = (rows + cut.rows - 1) / cut.rows;
  const int64_t element = static_cast<int64_t>(DTypeBytes(out.dtype));
  // Panels outermost: the threads share the rows and stream different weights.
  pool.Run(groups * runs, [&](int64_t i) {
    const int64_t panel = i / runs * group, first = i % runs * cut.rows, column = panel * kBf16PanelColumns;
    Bf16LinearItem item;
    item.left = staging.data() + first * row_elements;
    item.rows = static_cast<int>(std::min(cut.rows, rows - first));
    item.panels = static_cast<const char*>(memory_->data()) + panel * panel_bytes();
    item.columns = std::min(group * kBf16PanelColumns, n_ - column);
    item.steps = static_cast<int>(steps());
    item.left_ahead = cut.left_ahead;
    item.right_ahead = cut.right_ahead;
    item.bias = bias_.empty() ? nullptr : bias_.data() + column;
    item.out = static_cast<char*>(out.data) + (first * out.row_stride + column) * element;
    item.out_dtype = out.dtype;
    item.out_stride = out.row_stride;
    table.linear(item);
  });
}

void Bf16Panels::CopyRow(int64_t row, uint16_t* to) const {
  constexpr int64_t kHalf = kBf16PanelColumns / 2, kPairs = kBf16Depth / 2;
  const int64_t column = row % kBf16PanelColumns;
  const auto* pairs = reinterpret_cast<const uint16_t*>(static_cast<const char*>(memory_->data()) +
                                                        row / kBf16PanelColumns * panel_bytes()) +
                      (column / kHalf * kPairs * kHalf + column % kHalf) * 2;
  for (int64_t i = 0; i < k_; ++i) {
    to[i] = pairs[i / kBf16Depth * kBf16Depth * kBf16PanelColumns + i % kBf16Depth / 2 * kBf16PanelColumns + i % 2];
  }
}

}  // namespace baton::kernels::cpu
