#include "common/utf8.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

std::string Repaired(std::string_view bytes, Utf8Repair repair, size_t cut) {
  std::string held, out;
  for (size_t i = 0; i < bytes.size(); i += cut) AppendUtf8(bytes.substr(i, cut), repair, held, out);
  FlushUtf8(repair, held, out);
  return out;
}

TEST(Utf8, MalformedPartsAreReplacedAsUnicodeRecommends) {
  struct Row {
    std::string_view bytes;
    const char* text;
  };
  const Row rows[] = {
      {"abc", "abc"},
      {"\xC3\xA9", "é"},
      {"a\xFF"
       "b",
       "a�b"},
      {"\xE2\x82", "�"},  // the beginning of €
      {"\xE2\x82"
       "a",
       "�a"},
      {"\xF0\x9F\x98", "�"},
      {"\xC0\x80", "��"},                   // overlong
      {"\xED\xA0\x80", "���"},              // a surrogate
      {"\xF4\x90\x80\x80", "����"},         // above U+10FFFF
      {"\xF0\x9F\xF0\x9F\x98\x80", "�😀"},  // a beginning, then a whole code point
      {"\x80\x80", "��"},
  };
  for (const Row& row : rows) {
    for (size_t cut = 1; cut <= 4; ++cut) {
      EXPECT_EQ(Repaired(row.bytes, Utf8Repair::kMaximalPart, cut), row.text) << "cut " << cut;
    }
  }
}

TEST(Utf8, EachByteIsReplacedWhereTokensAreBytes) {
  EXPECT_EQ(Repaired("\xE2\x82", Utf8Repair::kEachByte, 1), "��");
  EXPECT_EQ(Repaired("\xF0\x9F\x98"
                     "a",
                     Utf8Repair::kEachByte, 2),
            "���a");
  EXPECT_EQ(Repaired("\xE2\x82\xAC", Utf8Repair::kEachByte, 1), "€");
}

TEST(Utf8, HoldsOnlyWhatMayBecomeACodePoint) {
  std::string held, out;
  AppendUtf8("a\xF0\x9F", Utf8Repair::kMaximalPart, held, out);
  EXPECT_EQ(out, "a");
  EXPECT_EQ(held, "\xF0\x9F");
  AppendUtf8("\x98\x80", Utf8Repair::kMaximalPart, held, out);
  EXPECT_EQ(out, "a😀");
  EXPECT_EQ(held, "");
}

TEST(Utf8, IsUtf8KnowsEveryCodePointAndNoOther) {
  for (uint32_t c = 0; c < 0x110000; c += c < 0x3000 ? 1 : 97) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    if (c < 0x80) {
      text = {static_cast<char>(c)};
    } else if (c < 0x800) {
      text = {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    } else if (c < 0x10000) {
      text = {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
              static_cast<char>(0x80 | (c & 63))};
    } else {
      text = {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
              static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
    }
    ASSERT_TRUE(IsUtf8(text)) << c;
    ASSERT_EQ(IsUtf8(text.substr(0, text.size() - 1)), text.size() == 1) << c;
  }
  for (const char* bytes :
       {"\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\xED\xBF\xBF", "\xF5\x80\x80\x80", "\xFE", "\xBF"}) {
    EXPECT_FALSE(IsUtf8(bytes));
  }
  EXPECT_TRUE(IsUtf8(""));
}

}  // namespace
}  // namespace baton
