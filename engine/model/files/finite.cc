#include "engine/model/files/finite.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/in_parts.h"

namespace baton::engine {
namespace {

// A word of 64 bits has several numbers. The lowest bit of the exponent, added to a number without its sign, reaches
// the sign's place if the exponent is all ones, and no further. Of e4m3, which has no infinities, all ones is NaN.
template <class Bits, Bits kLowest>
int64_t First(const void* values, int64_t n) {
  constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  constexpr uint64_t kEach = ~uint64_t{0} / static_cast<Bits>(~Bits{0});  // 1 in each number's place
  constexpr uint64_t kSigns = kEach * kSign, kLowests = kEach * kLowest;
  constexpr int kWords = 32;
  constexpr int64_t kTogether = kWords * sizeof(uint64_t) / sizeof(Bits);
  const auto any = [](const char* words) {
    uint64_t reached = 0;
    for (int i = 0; i < kWords; ++i) {
      uint64_t word;
      std::memcpy(&word, words + i * sizeof word, sizeof word);
      reached |= (word & ~kSigns) + kLowests;
    }
    return (reached & kSigns) != 0;
  };
  const char* from = static_cast<const char*>(values);
  int64_t at = 0;
  while (at + kTogether <= n && !any(from)) {
    at += kTogether;
    from += kWords * sizeof(uint64_t);
  }
  for (; at < n; ++at, from += sizeof(Bits)) {  // the last few, or until it is found
    Bits x;
    std::memcpy(&x, from, sizeof x);
    if ((static_cast<Bits>((x & ~kSign) + kLowest) & kSign) != 0) return at;
  }
  return -1;
}

}  // namespace

int64_t FirstNotFinite(DType type, const void* values, int64_t n) {
  switch (type) {
    case DType::kF32: return First<uint32_t, 0x00800000>(values, n);
    case DType::kBF16: return First<uint16_t, 0x0080>(values, n);
    case DType::kF16: return First<uint16_t, 0x0400>(values, n);
    case DType::kF8E4M3: return First<uint8_t, 0x01>(values, n);
    default: BATON_CHECK(false, "weights of ", DTypeName(type));
  }
}

std::optional<CodePlace> FirstNotFinite(const kernels::QuantizedWeight& weight) {
  constexpr int64_t kWorthAThread = 1 << 20;  // codes
  const int64_t inputs = weight.k, groups = inputs / weight.group;
  LowestPlace lowest;
  InParts(weight.n, std::min(LoadThreads(), weight.n * inputs / kWorthAThread), [&](int64_t first, int64_t end) {
    const int64_t scale = FirstNotFinite(DType::kF32, weight.scales.data() + first * groups, (end - first) * groups);
    if (scale >= 0) lowest.Note((first * groups + scale) * weight.group);
    if (weight.kind != kernels::CodeKind::kE4m3) return;
    const int64_t code = FirstNotFinite(DType::kF8E4M3, weight.codes.data() + first * inputs, (end - first) * inputs);
    if (code >= 0) lowest.Note(first * inputs + code);
  });
  const std::optional<int64_t> found = lowest.found();
  return found ? std::optional(CodePlace{*found / inputs, *found % inputs}) : std::nullopt;
}

}  // namespace baton::engine
