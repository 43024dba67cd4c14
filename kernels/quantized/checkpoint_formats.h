// Quantized checkpoints as they lie in files, unpacked to weight.h's form: AWQ, GPTQ, GGUF Q4_0 and Q8_0.
// Host code, once per weight at load; no thread of its own.
//
// Sources: AutoAWQ's GEMM format, AutoGPTQ's checkpoint format version 1, ggml's block_q4_0 and block_q8_0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/quantized/weight.h"
#include "kernels/tensor.h"

namespace baton::kernels {

/// 4 bits along the outputs: word [k, n / 8], its nibbles are outputs 0, 2, 4, 6, 1, 3, 5, 7 of eight.
struct AwqWeight {
  int n = 0, k = 0, group = 128;      ///< n a multiple of 8
  std::span<const uint32_t> weights;  ///< [k, n / 8]
  std::span<const uint32_t> zeros;    ///< [k / group, n / 8], packed alike
  Tensor scales;                      ///< [k / group, n] f16, bf16 or f32
};
/// InvalidArgument with the numbers: a size that does not belong to n, k and group. FailedPrecondition: a group that
/// the kernels do not take (GroupFits).
absl::StatusOr<QuantizedWeight> UnpackAwq(const AwqWeight& w);

/// 4 or 8 bits along the inputs: word [k · bits / 32, n]; zeros along the outputs, less one.
struct GptqWeight {
  int bits = 4, n = 0, k = 0, group = 128;  ///< group k: one per output
  std::span<const uint32_t> weights;        ///< [k · bits / 32, n]
  std::span<const uint32_t> zeros;          ///< [k / group, n · bits / 32]
  Tensor scales;                            ///< [k / group, n] f16, bf16 or f32
  std::span<const int32_t> group_of_input;  ///< g_idx [k], or empty
};
/// FailedPrecondition: inputs ordered by activation (desc_act), where neighbours do not share a group.
absl::StatusOr<QuantizedWeight> UnpackGptq(const GptqWeight& w);

/// Rows of blocks of 32 inputs: f16 scale, then 16 bytes (input i low, input i + 16 high) or 32 signed bytes.
absl::StatusOr<QuantizedWeight> UnpackQ4_0(std::span<const std::byte> blocks, int n, int k);
absl::StatusOr<QuantizedWeight> UnpackQ8_0(std::span<const std::byte> blocks, int n, int k);

}  // namespace baton::kernels
