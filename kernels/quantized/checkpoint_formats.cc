#include "kernels/quantized/checkpoint_formats.h"

#include <cstring>

#include "common/half.h"
#include "common/status.h"

namespace baton::kernels {
namespace {

constexpr int kGgufBlock = 32;

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
  if (n < 1 || k < 1 || k % kGgufBlock != 0) {
    return absl::InvalidArgumentError(
        StrCat("a quantized weight of ", n, " × ", k, ": rows of whole blocks of ", kGgufBlock, " are needed"));
  }
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
