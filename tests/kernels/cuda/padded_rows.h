// A matrix in the device's memory whose rows have NaN between them, which a kernel may neither read nor write.
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
  void Poison() const { all_.Write(std::vector<T>(all_.size(), Nan<T>())); }
  /// [rows, columns]
  void Set(const std::vector<T>& values) const {
    std::vector<T> all = all_.Read();
    for (size_t i = 0; i < values.size(); ++i) all[i / columns_ * stride + i % columns_] = values[i];
    all_.Write(all);
  }
  /// [rows, columns]
  std::vector<T> Packed() const {
    const std::vector<T> all = all_.Read();
    std::vector<T> packed;
    for (auto row = all.begin(); row < all.end(); row += stride) packed.insert(packed.end(), row, row + columns_);
    return packed;
  }
  bool GapsAreUntouched() const {
    const std::vector<T> all = all_.Read();
    const T poison = Nan<T>();
    for (size_t at = 0; at < all.size(); ++at)
      if (at % stride >= static_cast<size_t>(columns_) && std::memcmp(&all[at], &poison, sizeof(T)) != 0) return false;
    return true;
  }
  T* data() const { return all_.data(); }

  const int64_t stride;

 private:
  int columns_;
  DeviceArray<T> all_;
};

}  // namespace baton::cuda_test
