#include "kernels/cpu/bf16_slices.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/log.h"
#include "common/status.h"
#include "kernels/cpu/cpu_memory.h"

namespace baton::kernels::cpu {
namespace {

constexpr size_t kLine = 64;

// A function of N alone. About eight slices of a layer, so that a few threads share it evenly; a wide one has more,
// because oneDNN is fastest when a slice's weights stay in the nearest cache.
int64_t SliceWidth(int64_t n) { return std::clamp<int64_t>((n / 8 + 63) / 64 * 64, 64, 512); }

int64_t WholeWidth(int64_t columns) {
  return (columns + Bf16Products::kNarrowest - 1) / Bf16Products::kNarrowest * Bf16Products::kNarrowest;
}

// Rows [first, first + count) of `t` as bf16, dense.
void CopyRows(const Tensor& t, int64_t first, int64_t count, const KernelTable& kernels, uint16_t* to) {
  const int64_t k = t.cols(), bytes = static_cast<int64_t>(DTypeBytes(t.dtype));
  for (int64_t r = 0; r < count; ++r) {
    const char* from = static_cast<const char*>(t.data) + (first + r) * t.row_stride * bytes;
    if (t.dtype == DType::kBF16)
      std::memcpy(to + r * k, from, static_cast<size_t>(k * bytes));
    else
      kernels.convert(from, t.dtype, 1.0f, to + r * k, DType::kBF16, static_cast<int>(k));
  }
}

}  // namespace

absl::StatusOr<const Bf16Product*> Bf16Products::Get(int64_t k, int64_t columns) {
  std::unique_ptr<Bf16Product>& product = made_[{k, columns}];
  if (product == nullptr) {
    BATON_ASSIGN_OR_RETURN(product, Bf16Product::Make(k, columns));
    if (const auto& sizes = product->sizes(); sizes.size() == 1) {
      LogWarning(
          "oneDNN's bf16 layer of {} to {} gives a row other bits in other batches here: computed in tiles of {} rows",
          k, columns, sizes[0]);
    }
  }
  return product.get();
}

absl::StatusOr<const Bf16Product*> Bf16Products::Widest(int64_t k, int64_t columns) {
  BATON_ASSIGN_OR_RETURN(const Bf16Product* narrow, Get(k, kNarrowest));
  if (columns == kNarrowest) return narrow;
  BATON_ASSIGN_OR_RETURN(const Bf16Product* wide, Get(k, columns));
  const auto [known, fresh] = agrees_.try_emplace({k, columns}, true);
  if (fresh) {
    known->second = wide->ColumnsAgree(*narrow);
    if (!known->second) {
      LogWarning(
          "oneDNN's bf16 layer of {} to {} gives a column other bits than one of {} to {} here: computed in slices of "
          "{}",
          k, columns, k, kNarrowest, kNarrowest);
    }
  }
  return known->second ? wide : narrow;
}

absl::StatusOr<std::unique_ptr<Bf16Slices>> Bf16Slices::Make(const Tensor& weight, const float* bias,
                                                             const KernelTable& kernels, Bf16Products& products,
                                                             Pool& pool) {
  BATON_CHECK(weight.rank == 2 && weight.shape[0] > 0 && weight.shape[1] > 0, "weight of rank ", weight.rank);
  auto made = std::unique_ptr<Bf16Slices>(new Bf16Slices);
  made->n_ = weight.shape[0];
  made->k_ = weight.shape[1];
  const int64_t width = SliceWidth(made->n_);
  size_t bytes = 0;
  for (int64_t first = 0; first < made->n_;) {
    const int64_t left = made->n_ - first;
    Slice slice{.first = first, .offset = bytes};
    BATON_ASSIGN_OR_RETURN(slice.product, products.Widest(made->k_, std::min(width, WholeWidth(left))));
    slice.width = slice.product->columns();
    slice.columns = std::min(slice.width, left);
    first += slice.columns;
    bytes += (slice.product->packed_bytes() + kLine - 1) / kLine * kLine;
    made->slices_.push_back(slice);
  }
  BATON_ASSIGN_OR_RETURN(made->memory_, AllocateHost(bytes));
  pool.Run(static_cast<int64_t>(made->slices_.size()), [&](int64_t i) {
    const Slice& slice = made->slices_[static_cast<size_t>(i)];
    AlignedVector<uint16_t> rows(static_cast<size_t>(slice.width * made->k_));
    std::ranges::fill(rows, uint16_t{0});
    CopyRows(weight, slice.first, slice.columns, kernels, rows.data());
    slice.product->Pack(rows.data(), static_cast<char*>(made->memory_->data()) + slice.offset);
  });
  if (bias != nullptr) made->bias_.assign(bias, bias + made->n_);
  return made;
}

void Bf16Slices::Run(const Tensor& x, const Tensor& out, const KernelTable& kernels, Pool& pool,
                     AlignedVector<uint16_t>& staging) const {
  BATON_CHECK(x.dtype == DType::kBF16 && x.cols() == k_ && out.cols() == n_ && x.rows() == out.rows(), "x [", x.rows(),
              ", ", x.cols(), "] ", DTypeName(x.dtype), ", weight [", n_, ", ", k_, "], out [", out.rows(), ", ",
              out.cols(), "]");
  // The first slice's greatest size cuts the rows into items; a slice whose product lacks that size cuts on.
  const int64_t rows = x.rows(), most = slices_.front().product->sizes().back();
  const int64_t runs = (rows + most - 1) / most;
  int64_t padding = 0;  // a primitive may read rows past the last; what it makes of them is dropped
  for (const Slice& slice : slices_) padding = std::max(padding, slice.product->sizes().back());
  staging.resize(static_cast<size_t>((rows + padding) * k_));
  CopyRows(x, 0, rows, kernels, staging.data());
  const int64_t element = static_cast<int64_t>(DTypeBytes(out.dtype));
  pool.Run(runs * static_cast<int64_t>(slices_.size()), [&](int64_t item) {
    thread_local AlignedVector<float> sums;
    const Slice& slice = slices_[static_cast<size_t>(item / runs)];
    const int64_t begin = item % runs * most, end = std::min(rows, begin + most);
    const char* weights = static_cast<const char*>(memory_->data()) + slice.offset;
    for (int64_t first = begin; first < end;) {
      const int64_t size = slice.product->NextSize(end - first), count = std::min(size, end - first);
      sums.resize(std::max(sums.size(), static_cast<size_t>(size * slice.width)));
      slice.product->Run(size, staging.data() + first * k_, weights, sums.data());
      for (int64_t r = 0; r < count; ++r) {
        float* line = sums.data() + r * slice.width;
        if (!bias_.empty()) kernels.add(bias_.data() + slice.first, DType::kF32, line, static_cast<int>(slice.columns));
        char* to = static_cast<char*>(out.data) + ((first + r) * out.row_stride + slice.first) * element;
        kernels.convert(line, DType::kF32, 1.0f, to, out.dtype, static_cast<int>(slice.columns));
      }
      first += count;
    }
  });
}

}  // namespace baton::kernels::cpu
