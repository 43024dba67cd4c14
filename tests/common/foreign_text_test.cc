#include "common/foreign_text.h"

#include "common/str_cat.h"
#include "common/utf8.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using namespace std::string_view_literals;

TEST(ForeignText, WhatCanBePrintedStays) {
  EXPECT_EQ(Printable("model.layers.0 – 模型 😀 \\d+"), "model.layers.0 – 模型 😀 \\d+");
  EXPECT_EQ(Quoted("a \"b\" \\c"), R"("a \"b\" \\c")");
  EXPECT_EQ(Quoted(""), "\"\"");
}

TEST(ForeignText, WhatWouldMoveTheCursorOrTheLineIsEscaped) {
  EXPECT_EQ(Printable("a\nb\tc\rd\0e\x1b[2Jf\x7f"sv), "a\\nb\\tc\\rd\\x00e\\x1b[2Jf\\x7f");
  EXPECT_EQ(Printable("\u0085\u009b|\u2028|\u202e|\u2066|\ufeff"), "\\x85\\x9b|\\u2028|\\u202e|\\u2066|\\ufeff");
}

TEST(ForeignText, EachMalformedByteIsEscaped) {
  EXPECT_EQ(Printable("\xff\xfe a\xc3|\xed\xa0\x80|\xf0\x9f\x98"), "\\xff\\xfe a\\xc3|\\xed\\xa0\\x80|\\xf0\\x9f\\x98");
}

TEST(ForeignText, LongTextIsCutAtACodePointAndSaysItsLength) {
  EXPECT_EQ(Printable(std::string(80, 'n')), std::string(80, 'n'));
  EXPECT_EQ(Printable(std::string(81, 'n')), StrCat(std::string(80, 'n'), "… (81 bytes)"));
  EXPECT_EQ(Quoted("abcdé", 5), "\"abcd\"… (6 bytes)");
  EXPECT_EQ(Printable(std::string(70000, '\xff'), 2), "\\xff\\xff… (70000 bytes)");
}

TEST(ForeignText, AnyBytesBecomeOneLineOfUtf8) {
  uint32_t random = 1;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (int i = 0; i < 40; ++i) bytes += static_cast<char>((random = random * 1664525 + 1013904223) >> 24);
    const std::string shown = Quoted(bytes, 30);
    EXPECT_TRUE(IsUtf8(shown)) << shown;
    for (char c : shown) EXPECT_FALSE(static_cast<uint8_t>(c) < 0x20 || c == 0x7f) << shown;
  }
}

}  // namespace
}  // namespace baton
