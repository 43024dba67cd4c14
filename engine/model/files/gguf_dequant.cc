#include "engine/model/files/gguf_dequant.h"

#include <cmath>
#include <cstring>

#include "common/check.h"
#include "common/half.h"
#include "common/str_cat.h"

namespace baton::engine {
namespace {

float F16At(const uint8_t* in) {
  uint16_t bits;
  std::memcpy(&bits, in, sizeof(bits));
  return FloatOfF16(bits);
}

uint32_t U32At(const uint8_t* in) {
  uint32_t bits;
  std::memcpy(&bits, in, sizeof(bits));
  return bits;
}

// f16 d, 32 signed bytes.
void Q8_0(const uint8_t* in, float* out) {
  const float d = F16At(in);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(in[2 + i]));
}

// f16 d, 16 bytes: elements 0…15 in the low nibbles, 16…31 in the high ones, offset 8.
void Q4_0(const uint8_t* in, float* out) {
  const float d = F16At(in);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((in[2 + i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((in[2 + i] >> 4) - 8);
  }
}

// f16 d, f16 m, 16 bytes as in Q4_0: d · q + m.
void Q4_1(const uint8_t* in, float* out) {
  const float d = F16At(in), m = F16At(in + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(in[4 + i] & 15) + m;
    out[i + 16] = d * static_cast<float>(in[4 + i] >> 4) + m;
  }
}

// f16 d, 32 fifth bits, 16 bytes of low nibbles, offset 16.
void Q5_0(const uint8_t* in, float* out) {
  const float d = F16At(in);
  const uint32_t high = U32At(in + 2);
  for (int i = 0; i < 16; ++i) {
    const int lo = (in[6 + i] & 15) | static_cast<int>((high >> i) & 1) << 4;
    const int hi = (in[6 + i] >> 4) | static_cast<int>((high >> (i + 16)) & 1) << 4;
    out[i] = d * static_cast<float>(lo - 16);
    out[i + 16] = d * static_cast<float>(hi - 16);
  }
}

// f16 d, f16 m, 32 fifth bits, 16 bytes: d · q + m.
void Q5_1(const uint8_t* in, float* out) {
  const float d = F16At(in), m = F16At(in + 2);
  const uint32_t high = U32At(in + 4);
  for (int i = 0; i < 16; ++i) {
    const int lo = (in[8 + i] & 15) | static_cast<int>((high >> i) & 1) << 4;
    const int hi = (in[8 + i] >> 4) | static_cast<int>((high >> (i + 16)) & 1) << 4;
    out[i] = d * static_cast<float>(lo) + m;
    out[i + 16] = d * static_cast<float>(hi) + m;
  }
}

// Eight 6-bit scales and eight 6-bit minimums in 12 bytes.
struct ScaleMin {
  int scale, min;
};
ScaleMin ScaleMinAt(const uint8_t* s, int j) {
  if (j < 4) return {s[j] & 63, s[j + 4] & 63};
  return {(s[j + 4] & 15) | (s[j - 4] >> 6) << 4, (s[j + 4] >> 4) | (s[j] >> 6) << 4};
}

// f16 d, f16 dmin, 12 bytes of scales, 128 bytes of nibbles: 8 runs of 32, d · scale · q - dmin · min. `high` has the
// fifth bits (bit r of byte i belongs to run r), or is null.
void FourOrFiveK(const uint8_t* in, const uint8_t* high, const uint8_t* low, float* out) {
  const float d = F16At(in), dmin = F16At(in + 2);
  for (int run = 0; run < 8; ++run) {
    const ScaleMin sm = ScaleMinAt(in + 4, run);
    const float scale = d * static_cast<float>(sm.scale), min = dmin * static_cast<float>(sm.min);
    const uint8_t* q = low + run / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      int value = run % 2 == 0 ? q[i] & 15 : q[i] >> 4;
      if (high != nullptr) value |= ((high[i] >> run) & 1) << 4;
      out[run * 32 + i] = scale * static_cast<float>(value) - min;
    }
  }
}
void Q4_K(const uint8_t* in, float* out) { FourOrFiveK(in, nullptr, in + 16, out); }
void Q5_K(const uint8_t* in, float* out) { FourOrFiveK(in, in + 16, in + 48, out); }

// 128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales, f16 d: two halves of 128, offset 32.
void Q6_K(const uint8_t* in, float* out) {
  const float d = F16At(in + 208);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* low = in + half * 64;
    const uint8_t* high = in + 128 + half * 32;
    const uint8_t* scales = in + 192 + half * 8;
    for (int i = 0; i < 128; ++i) {
      const int run = i / 32, lane = i % 32;
      const uint8_t nibbles = low[(run % 2) * 32 + lane];
      const int value = (run < 2 ? nibbles & 15 : nibbles >> 4) | ((high[lane] >> (2 * run)) & 3) << 4;
      const float scale = static_cast<float>(static_cast<int8_t>(scales[run * 2 + lane / 16]));
      out[half * 128 + i] = d * scale * static_cast<float>(value - 32);
    }
  }
}

using BlockFn = void (*)(const uint8_t*, float*);
BlockFn BlockFnOf(GgmlType type) {
  switch (type) {
    case GgmlType::kQ8_0: return Q8_0;
    case GgmlType::kQ4_0: return Q4_0;
    case GgmlType::kQ4_1: return Q4_1;
    case GgmlType::kQ5_0: return Q5_0;
    case GgmlType::kQ5_1: return Q5_1;
    case GgmlType::kQ4_K: return Q4_K;
    case GgmlType::kQ5_K: return Q5_K;
    case GgmlType::kQ6_K: return Q6_K;
    default: return nullptr;
  }
}

}  // namespace

std::string NumberNotFinite(GgmlType type, const uint8_t* block) {
  const float scale = F16At(block + (type == GgmlType::kQ6_K ? 208 : 0));
  const bool with_minimum =
      type == GgmlType::kQ4_1 || type == GgmlType::kQ5_1 || type == GgmlType::kQ4_K || type == GgmlType::kQ5_K;
  if (!std::isfinite(scale) || !with_minimum) return StrCat("scale ", scale);
  return StrCat("minimum ", F16At(block + 2));
}

bool CanDequantize(GgmlType type) {
  return type == GgmlType::kF32 || type == GgmlType::kF16 || type == GgmlType::kBF16 || BlockFnOf(type) != nullptr;
}

void Dequantize(GgmlType type, const uint8_t* in, int64_t elements, float* out) {
  const GgmlBlock block = GgmlBlockOf(type);
  BATON_CHECK(CanDequantize(type) && elements % block.elements == 0, elements, " elements of ", block.name);
  if (type == GgmlType::kF32) {
    std::memcpy(out, in, static_cast<size_t>(elements) * 4);
  } else if (type == GgmlType::kF16) {
    for (int64_t i = 0; i < elements; ++i) out[i] = F16At(in + 2 * i);
  } else if (type == GgmlType::kBF16) {
    for (int64_t i = 0; i < elements; ++i) {
      uint16_t bits;
      std::memcpy(&bits, in + 2 * i, 2);
      out[i] = FloatOfBf16(bits);
    }
  } else {
    const BlockFn fn = BlockFnOf(type);
    for (int64_t i = 0; i < elements; i += block.elements, in += block.bytes) fn(in, out + i);
  }
}

}  // namespace baton::engine
