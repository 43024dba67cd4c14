// A matrix whose rows have NaN between them, which a kernel may neither read nor write.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/kernels/cuda/device_test.h"

namespace baton::cuda_test {

template <typename T>
class PaddedRows {
 public:
  /// All of it poisoned; `gap` elements after each row.
  PaddedRows(int rows, int columns, int gap)
      : stride(columns + gap), columns_(columns), all_(static_cast<size_t>(rows) * stride) {
    Poison();
  }
  PaddedRows(const std::vector<T>& values, int rows, int columns, int gap) : PaddedRows(rows, columns, gap) {
    Set(values);
  }
  void Poison() const { std::fill_n(all_.data(), all_.size(), Nan<T>()); }
  /// [rows, columns]
  void Set(const std::vector<T>& values) const {
    for (size_t i = 0; i < values.size(); ++i) all_[i / columns_ * stride + i % columns_] = values[i];
  }
  /// [rows, columns]
  std::vector<T> Packed() const {
    std::vector<T> packed;
    for (size_t at = 0; at < all_.size(); at += static_cast<size_t>(stride))
      packed.insert(packed.end(), all_.data() + at, all_.data() + at + columns_);
    return packed;
  }
  bool GapsAreUntouched() const {
    const T poison = Nan<T>();
    for (size_t at = 0; at < all_.size(); ++at)
      if (at % stride >= static_cast<size_t>(columns_) && std::memcmp(&all_[at], &poison, sizeof(T)) != 0) return false;
    return true;
  }
  T* data() const { return all_.data(); }

  const int64_t stride;

 private:
  int columns_;
  Array<T> all_;
};

}  // namespace baton::cuda_test
