// Names and block sizes of ggml's element types.
#include "common/gguf.h"

namespace baton {

GgmlBlock GgmlBlockOf(GgmlType type) {
  switch (type) {
    case GgmlType::kF32: return {"F32", 1, 4};
    case GgmlType::kF16: return {"F16", 1, 2};
    case GgmlType::kBF16: return {"BF16", 1, 2};
    case GgmlType::kF64: return {"F64", 1, 8};
    case GgmlType::kI8: return {"I8", 1, 1};
    case GgmlType::kI16: return {"I16", 1, 2};
    case GgmlType::kI32: return {"I32", 1, 4};
    case GgmlType::kI64: return {"I64", 1, 8};
    // Legacy blocks of 32: an f16 scale (d), perhaps an f16 minimum (m), perhaps 4 bytes of fifth bits, the values.
    case GgmlType::kQ4_0: return {"Q4_0", 32, 2 + 16};
    case GgmlType::kQ4_1: return {"Q4_1", 32, 4 + 16};
    case GgmlType::kQ5_0: return {"Q5_0", 32, 2 + 4 + 16};
    case GgmlType::kQ5_1: return {"Q5_1", 32, 4 + 4 + 16};
    case GgmlType::kQ8_0: return {"Q8_0", 32, 2 + 32};
    case GgmlType::kQ8_1: return {"Q8_1", 32, 4 + 32};
    // Super-blocks of 256.
    case GgmlType::kQ2_K: return {"Q2_K", 256, 84};
    case GgmlType::kQ3_K: return {"Q3_K", 256, 110};
    case GgmlType::kQ4_K: return {"Q4_K", 256, 144};
    case GgmlType::kQ5_K: return {"Q5_K", 256, 176};
    case GgmlType::kQ6_K: return {"Q6_K", 256, 210};
    case GgmlType::kQ8_K: return {"Q8_K", 256, 292};
    case GgmlType::kIQ2_XXS: return {"IQ2_XXS", 256, 66};
    case GgmlType::kIQ2_XS: return {"IQ2_XS", 256, 74};
    case GgmlType::kIQ2_S: return {"IQ2_S", 256, 82};
    case GgmlType::kIQ3_XXS: return {"IQ3_XXS", 256, 98};
    case GgmlType::kIQ3_S: return {"IQ3_S", 256, 110};
    case GgmlType::kIQ1_S: return {"IQ1_S", 256, 50};
    case GgmlType::kIQ1_M: return {"IQ1_M", 256, 56};
    case GgmlType::kIQ4_NL: return {"IQ4_NL", 32, 18};
    case GgmlType::kIQ4_XS: return {"IQ4_XS", 256, 136};
    case GgmlType::kTQ1_0: return {"TQ1_0", 256, 54};
    case GgmlType::kTQ2_0: return {"TQ2_0", 256, 66};
    case GgmlType::kMXFP4: return {"MXFP4", 32, 17};
  }
  return {"", 0, 0};
}

std::string_view GgufValueTypeName(GgufValueType type) {
  switch (type) {
    case GgufValueType::kU8: return "uint8";
    case GgufValueType::kI8: return "int8";
    case GgufValueType::kU16: return "uint16";
    case GgufValueType::kI16: return "int16";
    case GgufValueType::kU32: return "uint32";
    case GgufValueType::kI32: return "int32";
    case GgufValueType::kF32: return "float32";
    case GgufValueType::kBool: return "bool";
    case GgufValueType::kString: return "string";
    case GgufValueType::kArray: return "array";
    case GgufValueType::kU64: return "uint64";
    case GgufValueType::kI64: return "int64";
    case GgufValueType::kF64: return "float64";
  }
  return "unknown";
}

uint64_t GgufTensor::elements() const {
  uint64_t n = 1;
  for (uint64_t d : dims) n *= d;  // the reader refused tables in which this overflows
  return n;
}

}  // namespace baton
