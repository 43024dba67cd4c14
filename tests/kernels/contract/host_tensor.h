// Tensors that own their elements, filled at random, and exact conversions: what the references are written with.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/tensor.h"

namespace baton::kernels {

inline uint16_t ToBf16(float x) {
  uint32_t u = std::bit_cast<uint32_t>(x);
  u += 0x7FFF + (u >> 16 & 1);
  return static_cast<uint16_t>(u >> 16);
}
inline float FromBf16(uint16_t h) { return std::bit_cast<float>(static_cast<uint32_t>(h) << 16); }
inline float FromF16(uint16_t h) {
  _Float16 x;
  std::memcpy(&x, &h, 2);
  return static_cast<float>(x);
}
inline uint16_t ToF16(float x) {
  const _Float16 h = static_cast<_Float16>(x);
  uint16_t bits;
  std::memcpy(&bits, &h, 2);
  return bits;
}

/// x as the type keeps it.
inline float Rounded(DType dtype, float x) {
  return dtype == DType::kBF16 ? FromBf16(ToBf16(x)) : dtype == DType::kF16 ? FromF16(ToF16(x)) : x;
}
/// Largest relative error of one rounding to the type.
inline double Grain(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return 0x1p-8;
    case DType::kF16: return 0x1p-11;
    case DType::kF8E4M3: return 0x1p-4;
    default: return 0x1p-24;
  }
}

/// A row-major tensor with `padding` unused elements after each row.
class HostTensor {
 public:
  HostTensor(DType dtype, int64_t rows, int64_t cols, int64_t padding = 0)
      : dtype_(dtype), rows_(rows), cols_(cols), stride_(cols + padding) {
    bytes_.resize(static_cast<size_t>(rows * stride_) * DTypeBytes(dtype) + 64, 0x5A);
  }
  template <class Rng>
  HostTensor& Fill(Rng& rng, float scale = 1.0f) {
    std::normal_distribution<float> normal(0, scale);
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) Set(r, c, normal(rng));
    }
    return *this;
  }
  void Set(int64_t r, int64_t c, float x) {
    char* at = bytes_.data() + (r * stride_ + c) * static_cast<int64_t>(DTypeBytes(dtype_));
    if (dtype_ == DType::kF32)
      std::memcpy(at, &x, 4);
    else {
      const uint16_t h = dtype_ == DType::kBF16 ? ToBf16(x) : ToF16(x);
      std::memcpy(at, &h, 2);
    }
  }
  float At(int64_t r, int64_t c) const {
    const char* at = bytes_.data() + (r * stride_ + c) * static_cast<int64_t>(DTypeBytes(dtype_));
    if (dtype_ == DType::kF32) {
      float x;
      std::memcpy(&x, at, 4);
      return x;
    }
    uint16_t h;
    std::memcpy(&h, at, 2);
    return dtype_ == DType::kBF16 ? FromBf16(h) : FromF16(h);
  }
  Tensor view() {
    Tensor t(bytes_.data(), dtype_, {rows_, cols_});
    t.row_stride = stride_;
    return t;
  }
  /// The bytes of one row.
  std::string_view Row(int64_t r) const {
    const size_t element = DTypeBytes(dtype_);
    return {bytes_.data() + static_cast<size_t>(r * stride_) * element, static_cast<size_t>(cols_) * element};
  }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

 private:
  DType dtype_;
  int64_t rows_, cols_, stride_;
  std::vector<char> bytes_;
};

}  // namespace baton::kernels
