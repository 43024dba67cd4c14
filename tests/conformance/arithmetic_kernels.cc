// Arithmetic, conversions and bit operations: each function over special values and noise.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/conformance/micro_kernels.h"

namespace baton::conformance {
namespace {

constexpr int kThreads = 128;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

PX_BOTH float F(uint32_t w) { return px::BitCast<float>(w); }
PX_BOTH uint32_t W(float x) { return px::BitCast<uint32_t>(x); }

/// out[i] = Op of the words i, i + n, i + 2n of the input.
template <typename Op>
PX_KERNEL void ApplyKernel(const uint32_t* in, uint32_t* out, int n) {
  const int i = px::BlockX() * kThreads + px::ThreadX();
  if (i < n) px::Store(out + i, Op::Device(px::Load(in + i), px::Load(in + n + i), px::Load(in + 2 * n + i)));
}

/// Values where rounding, ties, flushing and NaN show; then noise of moderate exponents.
Words FloatInputs(uint32_t seed, float low, float high) {
  Words words;
  for (float x : {0.0f,     -0.0f,          1.0f,           -1.0f,
                  1.5f,     448.0f,         464.0f,         480.0f,
                  1e-3f,    0x1p-9f,        0x1p-10f,       3.0f * 0x1p-10f,
                  65504.0f, 1.0f + 0x1p-8f, 1.0f + 0x1p-9f, 1.0f + 3 * 0x1p-8f,
                  240.0f,   kInfinity,      -kInfinity,     std::numeric_limits<float>::quiet_NaN()})
    words.push_back(W(x));
  for (uint32_t w : Noise(236, seed)) words.push_back(W(low + (high - low) * static_cast<float>(w >> 8) * 0x1p-24f));
  return words;
}

template <typename Op>
MicroKernel Apply(float low = -8.0f, float high = 8.0f) {
  Words input;
  for (uint32_t seed : {1u, 2u, 3u})
    for (uint32_t w : Op::kIntegers ? Noise(256, seed) : FloatInputs(seed, low, high)) input.push_back(w);
  const int n = static_cast<int>(input.size() / 3);
  // The second and third operand begin elsewhere, so that special values meet ordinary ones and each other.
  for (int operand = 1; operand < 3; ++operand)
    std::rotate(input.begin() + operand * n, input.begin() + operand * n + 7 * operand,
                input.begin() + (operand + 1) * n);
  MicroKernel k{Op::kName, Op::kTolerance, {}, {}};
  k.run = [=](gpu::Stream& stream) {
    return Launch(stream, {.grid = {static_cast<unsigned>((n + kThreads - 1) / kThreads)}, .block = {kThreads}},
                  static_cast<size_t>(n), input, &ApplyKernel<Op>, n);
  };
  for (int i = 0; i < n; ++i) k.want.push_back(Op::Host(input[i], input[n + i], input[2 * n + i]));
  return k;
}

constexpr Tolerance kExact, kExactFloat{Tolerance::Kind::kFloat, 0, 0.0};  // all NaNs are one
constexpr Tolerance Ulps(int ulps, double absolute = 0.0) { return {Tolerance::Kind::kFloat, ulps, absolute}; }

#define CONFORMANCE_OP(name, integers, tolerance, device, host)                                                   \
  struct name##Op {                                                                                               \
    static constexpr const char* kName = #name;                                                                   \
    static constexpr bool kIntegers = integers;                                                                   \
    static constexpr Tolerance kTolerance = tolerance;                                                            \
    static PX_DEVICE uint32_t Device([[maybe_unused]] uint32_t a, [[maybe_unused]] uint32_t b,                    \
                                     [[maybe_unused]] uint32_t c) {                                               \
      return device;                                                                                              \
    }                                                                                                             \
    static uint32_t Host([[maybe_unused]] uint32_t a, [[maybe_unused]] uint32_t b, [[maybe_unused]] uint32_t c) { \
      return host;                                                                                                \
    }                                                                                                             \
  }

/// The e4m3 value nearest to x, ties to even, by trying all of them.
uint32_t NearestE4m3(float x) {
  if (std::isnan(x)) return 0x7F;
  const float magnitude = std::fabs(x);
  uint32_t best = 0;
  for (uint32_t code = 0; code < 0x7F; ++code) {
    const float d = std::fabs(px::E4m3BitsToFloat(code) - magnitude),
                e = std::fabs(px::E4m3BitsToFloat(best) - magnitude);
    if (d < e || (d == e && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(x) ? 0x80u : 0u);
}
/// The bf16 nearest to x as a double would round it.
uint32_t NearestBf16(double x) { return std::isnan(x) ? 0x7FFFu : px::FloatToBf16Bits(static_cast<float>(x)); }
float Bf16Half(uint32_t w, int i) { return px::Bf16BitsToFloat(w >> (16 * i) & 0xFFFFu); }
/// Bytes of a (0 … 3) and b (4 … 7), by the selector's digits.
uint32_t PickedBytes(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t from = selector >> (4 * i) & 7u;
    out |= ((from < 4 ? a : b) >> (8 * (from % 4)) & 0xFFu) << (8 * i);
  }
  return out;
}
/// A product of two bf16 plus a bf16 is exact in double unless exponents are far apart; then only the sign of the tail
/// counts.
uint32_t FusedBf16(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t out = 0;
  for (int i = 0; i < 2; ++i) {
    const double exact = static_cast<double>(Bf16Half(a, i)) * Bf16Half(b, i) + Bf16Half(c, i);
    float near = static_cast<float>(exact);
    // Rounding twice would break ties: push the float off the tie towards the exact value.
    if (static_cast<double>(near) != exact && (W(near) & 0xFFFFu) == 0x8000u)
      near = std::nextafter(near, exact > near ? kInfinity : -kInfinity);
    out |= NearestBf16(near) << (16 * i);
  }
  return out;
}

CONFORMANCE_OP(Fma, false, kExactFloat, W(px::Fma(F(a), F(b), F(c))), W(std::fma(F(a), F(b), F(c))));
CONFORMANCE_OP(Mul, false, kExactFloat, W(px::Mul(F(a), F(b))),
               W(static_cast<float>(static_cast<double>(F(a)) * F(b))));
CONFORMANCE_OP(Add, false, kExactFloat, W(px::Add(F(a), F(b))),
               W(static_cast<float>(static_cast<double>(F(a)) + F(b))));
CONFORMANCE_OP(Div, false, kExactFloat, W(px::Div(F(a), F(b))),
               W(static_cast<float>(static_cast<double>(F(a)) / F(b))));
CONFORMANCE_OP(Max, false, kExactFloat, W(px::Max(F(a), F(b))),
               W(std::isnan(F(a))   ? F(b)
                 : std::isnan(F(b)) ? F(a)
                 : F(a) > F(b)      ? F(a)
                                    : F(b)));
CONFORMANCE_OP(Min, false, kExactFloat, W(px::Min(F(a), F(b))),
               W(std::isnan(F(a))   ? F(b)
                 : std::isnan(F(b)) ? F(a)
                 : F(a) < F(b)      ? F(a)
                                    : F(b)));
CONFORMANCE_OP(Exp2, false, Ulps(2), W(px::Exp2(F(a))), W(static_cast<float>(std::exp2(static_cast<double>(F(a))))));
CONFORMANCE_OP(Log2, false, Ulps(2, 0x1p-21), W(px::Log2(F(a))),
               W(static_cast<float>(std::log2(static_cast<double>(F(a))))));
CONFORMANCE_OP(Rcp, false, Ulps(1), W(px::Rcp(F(a))), W(static_cast<float>(1.0 / F(a))));
CONFORMANCE_OP(Rsqrt, false, Ulps(2), W(px::Rsqrt(F(a))),
               W(static_cast<float>(1.0 / std::sqrt(static_cast<double>(F(a))))));
CONFORMANCE_OP(Tanh, false, Ulps(2), W(px::Tanh(F(a))), W(static_cast<float>(std::tanh(static_cast<double>(F(a))))));
CONFORMANCE_OP(Log64, false, Ulps(1), W(static_cast<float>(px::Log64(static_cast<double>(F(a))))),
               W(static_cast<float>(std::log(static_cast<long double>(F(a))))));
CONFORMANCE_OP(PackBf16, false, kExact, px::PackBf16(F(a), F(b)), NearestBf16(F(a)) | NearestBf16(F(b)) << 16);
CONFORMANCE_OP(UnpackBf16, true, kExactFloat, W(px::UnpackBf16(a).x + 2 * px::UnpackBf16(a).y),
               W(Bf16Half(a, 0) + 2 * Bf16Half(a, 1)));
CONFORMANCE_OP(PackE4m3, false, kExact, px::PackE4m3(F(a), F(b)), NearestE4m3(F(a)) | NearestE4m3(F(b)) << 8);
CONFORMANCE_OP(UnpackE4m3Low, true, kExactFloat, W(px::UnpackE4m3(static_cast<uint16_t>(a)).x),
               W(px::E4m3BitsToFloat(a & 0xFFu)));
CONFORMANCE_OP(UnpackE4m3High, true, kExactFloat, W(px::UnpackE4m3(static_cast<uint16_t>(a)).y),
               W(px::E4m3BitsToFloat(a >> 8 & 0xFFu)));
CONFORMANCE_OP(E4m3ToBf16, true, kExact, px::E4m3ToBf16(static_cast<uint16_t>(a)),
               NearestBf16(px::E4m3BitsToFloat(a & 0xFFu)) | NearestBf16(px::E4m3BitsToFloat(a >> 8 & 0xFFu)) << 16);
CONFORMANCE_OP(BytePermute, true, kExact, px::BytePermute(a, b, c & 0x7777u), PickedBytes(a, b, c));
CONFORMANCE_OP(FmaBf16x2, false, kExact,
               px::FmaBf16x2(px::PackBf16(F(a), F(b)), px::PackBf16(F(b), F(c)), px::PackBf16(F(c), F(a))),
               FusedBf16(NearestBf16(F(a)) | NearestBf16(F(b)) << 16, NearestBf16(F(b)) | NearestBf16(F(c)) << 16,
                         NearestBf16(F(c)) | NearestBf16(F(a)) << 16));
CONFORMANCE_OP(Lop3, true, kExact, (px::Lop3<0x6A>(a, b, c)), (a & b) ^ c);  // truth table of (a & b) ^ c
CONFORMANCE_OP(PopCount, true, kExact, static_cast<uint32_t>(px::PopCount(a)),
               static_cast<uint32_t>(__builtin_popcount(a)));
CONFORMANCE_OP(MulHigh, true, kExact, px::MulHigh(a, b), static_cast<uint32_t>(static_cast<uint64_t>(a) * b >> 32));

}  // namespace

std::vector<MicroKernel> ArithmeticKernels() {
  return {Apply<FmaOp>(),
          Apply<MulOp>(),
          Apply<AddOp>(),
          Apply<DivOp>(),
          Apply<MaxOp>(),
          Apply<MinOp>(),
          Apply<Exp2Op>(-30, 30),
          Apply<Log2Op>(0, 9),
          Apply<RcpOp>(),
          Apply<RsqrtOp>(0.01f, 9),
          Apply<TanhOp>(),
          Apply<Log64Op>(0, 9),
          Apply<PackBf16Op>(),
          Apply<UnpackBf16Op>(),
          Apply<PackE4m3Op>(),
          Apply<UnpackE4m3LowOp>(),
          Apply<UnpackE4m3HighOp>(),
          Apply<E4m3ToBf16Op>(),
          Apply<BytePermuteOp>(),
          Apply<FmaBf16x2Op>(),
          Apply<Lop3Op>(),
          Apply<PopCountOp>(),
          Apply<MulHighOp>()};
}

}  // namespace baton::conformance
