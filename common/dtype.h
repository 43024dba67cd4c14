// Element types of tensors and KV planes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace baton {

enum class DType : uint8_t { kF32, kBF16, kF16, kF8E4M3, kI32, kI64, kU8 };

/// Bytes of one element.
constexpr size_t DTypeBytes(DType t) {
  switch (t) {
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kI64: return 8;
    case DType::kBF16:
    case DType::kF16: return 2;
    case DType::kF8E4M3:
    case DType::kU8: return 1;
  }
  return 0;
}

/// The field's name: "float32", "bfloat16", "float16", "fp8_e4m3", "int32", "int64", "uint8".
constexpr std::string_view DTypeName(DType t) {
  switch (t) {
    case DType::kF32: return "float32";
    case DType::kBF16: return "bfloat16";
    case DType::kF16: return "float16";
    case DType::kF8E4M3: return "fp8_e4m3";
    case DType::kI32: return "int32";
    case DType::kI64: return "int64";
    case DType::kU8: return "uint8";
  }
  return "?";
}

}  // namespace baton
