// GGUF block formats to floats. The layouts are facts of the ggml file format.
#pragma once

#include <cstdint>
#include <string>

#include "common/gguf.h"

namespace baton::engine {

/// F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K.
bool CanDequantize(GgmlType type);

/// Writes `elements` floats (a multiple of the type's block) from `in`, which need not be aligned.
void Dequantize(GgmlType type, const uint8_t* in, int64_t elements, float* out);

/// "scale nan": of the numbers that all of a block is multiplied with, or that are added, the first that is not finite.
/// Else the first of them.
std::string NumberNotFinite(GgmlType type, const uint8_t* block);

}  // namespace baton::engine
