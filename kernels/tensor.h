// A view of device memory with a shape. Ops take views; who allocated the memory owns it.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "common/check.h"
#include "common/dtype.h"

namespace baton::kernels {

/// Non-owning, row-major view of up to 4 dimensions. Rows may be padded: `row_stride` is the distance, in elements,
/// between consecutive indices of the *first* dimension; the other dimensions are dense.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, 4> shape{};
  int64_t row_stride = 0;

  Tensor() = default;
  /// A dense tensor.
  Tensor(void* data_in, DType dtype_in, std::initializer_list<int64_t> dims) : data(data_in), dtype(dtype_in) {
    BATON_CHECK(dims.size() >= 1 && dims.size() <= 4, "rank ", dims.size());
    for (int64_t d : dims) shape[rank++] = d;
    row_stride = 1;
    for (int i = 1; i < rank; ++i) row_stride *= shape[i];
  }

  int64_t rows() const { return shape[0]; }
  /// Elements per row.
  int64_t cols() const {
    int64_t n = 1;
    for (int i = 1; i < rank; ++i) n *= shape[i];
    return n;
  }
  int64_t elements() const { return rows() * cols(); }
  bool dense() const { return row_stride == cols(); }
  /// Rows [first, first + count) of this tensor.
  Tensor Rows(int64_t first, int64_t count) const {
    BATON_DCHECK(first >= 0 && count >= 0 && first + count <= shape[0]);
    Tensor t = *this;
    t.data = static_cast<char*>(data) + first * row_stride * static_cast<int64_t>(DTypeBytes(dtype));
    t.shape[0] = count;
    return t;
  }
  /// Columns [first, first + count) of a tensor of two dimensions.
  Tensor Columns(int64_t first, int64_t count) const {
    BATON_DCHECK(rank == 2 && first >= 0 && count >= 0 && first + count <= shape[1]);
    Tensor t = *this;
    t.data = static_cast<char*>(data) + first * static_cast<int64_t>(DTypeBytes(dtype));
    t.shape[1] = count;
    return t;
  }
  template <typename T>
  T* Data() const {
    return static_cast<T*>(data);
  }
};

}  // namespace baton::kernels
