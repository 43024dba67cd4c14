// Every code of every small float type, and every rounding between two of them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/float8.h"
#include "common/half.h"

namespace baton {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Codes [0, last] ascend in value. Both ways are exact on them; what lies between two goes to the nearer one, the
// middle to the even one; signs are kept.
template <class ToFloat, class OfFloat>
void ExpectNearestEven(uint32_t last, uint32_t sign_bit, ToFloat to_float, OfFloat of_float) {
  for (uint32_t code = 0; code <= last; ++code) {
    const float value = to_float(code);
    ASSERT_EQ(of_float(value), code);
    ASSERT_EQ(of_float(-value), code | sign_bit);
    ASSERT_EQ(to_float(code | sign_bit), -value);
    if (code == last) break;
    const float next = to_float(code + 1), middle = value / 2 + next / 2;  // has one bit more: exact
    ASSERT_LT(value, next) << code;
    ASSERT_EQ(of_float(middle), code % 2 == 0 ? code : code + 1) << middle;
    ASSERT_EQ(of_float(std::nextafter(middle, 0.0f)), code) << middle;
    ASSERT_EQ(of_float(std::nextafter(middle, kInfinity)), code + 1) << middle;
  }
}

TEST(SmallFloats, E4m3) {
  ExpectNearestEven(0x7E, 0x80, [](uint32_t c) { return FloatOfE4m3(static_cast<uint8_t>(c)); }, E4m3OfFloat);
  EXPECT_EQ(FloatOfE4m3(0x7E), 448);
  EXPECT_EQ(FloatOfE4m3(0x01), 0x1p-9f);
  EXPECT_EQ(E4m3OfFloat(449), 0x7E) << "saturates";
  EXPECT_EQ(E4m3OfFloat(-kInfinity), 0xFE);
  EXPECT_TRUE(std::isnan(FloatOfE4m3(0x7F)) && std::isnan(FloatOfE4m3(0xFF)));
  EXPECT_EQ(E4m3OfFloat(NAN), 0x7F);
}

TEST(SmallFloats, F16) {
  ExpectNearestEven(0x7BFF, 0x8000, [](uint32_t c) { return FloatOfF16(static_cast<uint16_t>(c)); }, F16OfFloat);
  EXPECT_EQ(FloatOfF16(0x3C00), 1);
  EXPECT_EQ(F16OfFloat(65519), 0x7BFF);
  EXPECT_EQ(F16OfFloat(65520), 0x7C00) << "nearer to 65536, which is infinity";
  EXPECT_EQ(F16OfFloat(-kInfinity), 0xFC00);
  EXPECT_TRUE(std::isnan(FloatOfF16(F16OfFloat(NAN))));
}

TEST(SmallFloats, Bf16) {
  ExpectNearestEven(0x7F7F, 0x8000, [](uint32_t c) { return FloatOfBf16(static_cast<uint16_t>(c)); }, Bf16OfFloat);
  EXPECT_EQ(FloatOfBf16(0x3F80), 1);
  EXPECT_EQ(Bf16OfFloat(kInfinity), 0x7F80);
  EXPECT_TRUE(std::isnan(FloatOfBf16(Bf16OfFloat(NAN))));
}

}  // namespace
}  // namespace baton
