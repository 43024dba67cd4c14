#include "kernels/quantized/checkpoint_formats.h"

#include <cstring>

#include "common/half.h"
#include "common/status.h"

namespace baton::kernels {
namespace {

constexpr int kGgufBlock = 32;

absl::Status CheckSize(const char* what, size_t got, int64_t want, int n, int k, int group) {
  if (static_cast<int64_t>(got) == want) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat(what, " has ", got, " elements, a weight of ", n, " × ", k, " in groups of ", group, " has ", want));
}

absl::Status CheckShape(int n, int k, int group, int n_multiple, int k_multiple) {
  const bool whole = n > 0 && k > 0 && group > 0 && n % n_multiple == 0 && k % k_multiple == 0 && k % group == 0;
  if (whole && !GroupFits(k, group)) {
    return absl::FailedPreconditionError(StrCat("a quantized weight in groups of ", group, " of ", k,
                                                " inputs: 32, a multiple of 64 or all are needed"));
  }
  if (whole) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("a quantized weight of ", n, " × ", k, " in groups of ", group,
                                           ": multiples of ", n_multiple, ", ", k_multiple,
                                           " and the group are needed"));
}

absl::StatusOr<std::vector<float>> Transposed(const Tensor& scales, const QuantizedWeight& w) {
  const int groups = w.k / w.group;
  if (scales.rank != 2 || scales.rows() != groups || scales.cols() != w.n) {
    return absl::InvalidArgumentError(StrCat("scales are ", scales.rank > 0 ? scales.rows() : 0, " × ",
                                             scales.rank > 1 ? scales.cols() : 0, ", want ", groups, " × ", w.n));
  }
  std::vector<float> out(static_cast<size_t>(w.n) * groups);
  for (int g = 0; g < groups; ++g) {
    for (int c = 0; c < w.n; ++c) {
      const int64_t at = g * scales.row_stride + c;
      float& to = out[static_cast<size_t>(c) * groups + g];
      switch (scales.dtype) {
        case DType::kF16: to = FloatOfF16(scales.Data<const uint16_t>()[at]); break;
        case DType::kBF16: to = FloatOfBf16(scales.Data<const uint16_t>()[at]); break;
        case DType::kF32: to = scales.Data<const float>()[at]; break;
        default: return absl::InvalidArgumentError(StrCat("scales of ", DTypeName(scales.dtype)));
      }
    }
  }
  return out;
}

QuantizedWeight Sized(int bits, int n, int k, int group) {
  QuantizedWeight w{bits, n, k, group, {}, {}, {}};
  w.codes.resize(static_cast<size_t>(n) * k);
  w.zeros.resize(static_cast<size_t>(n) * (k / group));
  return w;
}

float ReadF16(const std::byte* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return FloatOfF16(bits);
}

/// decode(block's bytes behind the scale, its 32 codes) for every block of every row.
template <typename Decode>
absl::StatusOr<QuantizedWeight> UnpackBlocks(std::span<const std::byte> blocks, int bits, int n, int k, int zero,
                                             Decode&& decode) {
  BATON_RETURN_IF_ERROR(CheckShape(n, k, kGgufBlock, 1, kGgufBlock));
  const int groups = k / kGgufBlock;
  const size_t block_bytes = 2 + static_cast<size_t>(kGgufBlock) * bits / 8;
  const int64_t count = static_cast<int64_t>(n) * groups;
  if (blocks.size() != static_cast<size_t>(count) * block_bytes) {
    return absl::InvalidArgumentError(StrCat(blocks.size(), " bytes of blocks, a weight of ", n, " × ", k, " in ", bits,
                                             " bits has ", static_cast<size_t>(count) * block_bytes));
  }
  QuantizedWeight w = Sized(bits, n, k, kGgufBlock);
  w.zeros.assign(w.zeros.size(), static_cast<uint16_t>(zero));
  w.scales.resize(w.zeros.size());
  for (int64_t b = 0; b < count; ++b) {
    const std::byte* block = blocks.data() + static_cast<size_t>(b) * block_bytes;
    w.scales[b] = ReadF16(block);
    decode(block + 2, w.codes.data() + b * kGgufBlock);
  }
  return w;
}

}  // namespace

absl::StatusOr<QuantizedWeight> UnpackAwq(const AwqWeight& in) {
  constexpr int kBits = 4, kPerWord = 8, kOutputOfNibble[kPerWord] = {0, 2, 4, 6, 1, 3, 5, 7};
  BATON_RETURN_IF_ERROR(CheckShape(in.n, in.k, in.group, kPerWord, 8));
  const int words = in.n / kPerWord, groups = in.k / in.group;
  BATON_RETURN_IF_ERROR(
      CheckSize("qweight", in.weights.size(), static_cast<int64_t>(in.k) * words, in.n, in.k, in.group));
  BATON_RETURN_IF_ERROR(
      CheckSize("qzeros", in.zeros.size(), static_cast<int64_t>(groups) * words, in.n, in.k, in.group));
  QuantizedWeight w = Sized(kBits, in.n, in.k, in.group);
  BATON_ASSIGN_OR_RETURN(w.scales, Transposed(in.scales, w));
  for (int c = 0; c < words; ++c) {
    for (int i = 0; i < kPerWord; ++i) {
      const size_t output = static_cast<size_t>(c) * kPerWord + kOutputOfNibble[i];
      for (int k = 0; k < in.k; ++k)
        w.codes[output * in.k + k] = in.weights[static_cast<size_t>(k) * words + c] >> (kBits * i) & 15u;
      for (int g = 0; g < groups; ++g)
        w.zeros[output * groups + g] = in.zeros[static_cast<size_t>(g) * words + c] >> (kBits * i) & 15u;
    }
  }
  return w;
}

absl::StatusOr<QuantizedWeight> UnpackGptq(const GptqWeight& in) {
  if (in.bits != 4 && in.bits != 8) return absl::InvalidArgumentError(StrCat("GPTQ of ", in.bits, " bits: 4 or 8"));
  const int per_word = 32 / in.bits;
  const uint32_t mask = (1u << in.bits) - 1;
  BATON_RETURN_IF_ERROR(CheckShape(in.n, in.k, in.group, per_word, 8));
  const int rows = in.k / per_word, groups = in.k / in.group, zero_words = in.n / per_word;
  BATON_RETURN_IF_ERROR(
      CheckSize("qweight", in.weights.size(), static_cast<int64_t>(rows) * in.n, in.n, in.k, in.group));
  BATON_RETURN_IF_ERROR(
      CheckSize("qzeros", in.zeros.size(), static_cast<int64_t>(groups) * zero_words, in.n, in.k, in.group));
  if (!in.group_of_input.empty()) {
    BATON_RETURN_IF_ERROR(CheckSize("g_idx", in.group_of_input.size(), in.k, in.n, in.k, in.group));
    for (int k = 0; k < in.k; ++k) {
      if (in.group_of_input[k] == k / in.group) continue;
      return absl::FailedPreconditionError(StrCat("GPTQ with inputs ordered by activation: input ", k, " is of group ",
                                                  in.group_of_input[k], ", not ", k / in.group));
    }
  }
  QuantizedWeight w = Sized(in.bits, in.n, in.k, in.group);
  BATON_ASSIGN_OR_RETURN(w.scales, Transposed(in.scales, w));
  for (int c = 0; c < in.n; ++c) {
    for (int k = 0; k < in.k; ++k)
      w.codes[static_cast<size_t>(c) * in.k + k] = static_cast<uint8_t>(
          in.weights[static_cast<size_t>(k / per_word) * in.n + c] >> (in.bits * (k % per_word)) & mask);
    for (int g = 0; g < groups; ++g)
      w.zeros[static_cast<size_t>(c) * groups + g] = static_cast<uint16_t>(
          (in.zeros[static_cast<size_t>(g) * zero_words + c / per_word] >> (in.bits * (c % per_word)) & mask) + 1);
  }
  return w;
}

absl::StatusOr<QuantizedWeight> UnpackQ4_0(std::span<const std::byte> blocks, int n, int k) {
  return UnpackBlocks(blocks, 4, n, k, 8, [](const std::byte* from, uint8_t* codes) {
    for (int i = 0; i < kGgufBlock / 2; ++i) {
      codes[i] = static_cast<uint8_t>(from[i]) & 15;
      codes[i + kGgufBlock / 2] = static_cast<uint8_t>(from[i]) >> 4;
    }
  });
}

absl::StatusOr<QuantizedWeight> UnpackQ8_0(std::span<const std::byte> blocks, int n, int k) {
  return UnpackBlocks(blocks, 8, n, k, 128, [](const std::byte* from, uint8_t* codes) {
    for (int i = 0; i < kGgufBlock; ++i)
      codes[i] = static_cast<uint8_t>(static_cast<int>(static_cast<int8_t>(from[i])) + 128);
  });
}

}  // namespace baton::kernels
