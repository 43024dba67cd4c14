// GGUF's Q4_0 and Q8_0 as they lie in files, unpacked to weight.h's form.
// Host code, once per weight at load; no thread of its own.
//
// Source: ggml's block_q4_0 and block_q8_0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/quantized/weight.h"

namespace baton::kernels {

/// Rows of blocks of 32 inputs: f16 scale, then 16 bytes (input i low, input i + 16 high) or 32 signed bytes.
absl::StatusOr<QuantizedWeight> UnpackQ4_0(std::span<const std::byte> blocks, int n, int k);
absl::StatusOr<QuantizedWeight> UnpackQ8_0(std::span<const std::byte> blocks, int n, int k);

}  // namespace baton::kernels
