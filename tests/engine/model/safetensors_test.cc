// Safetensors files: a valid one reads; each lie is refused with its numbers. Build something valid, break one thing.
#include "engine/model/files/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "common/str_cat.h"

namespace baton::engine {
namespace {

using testing::HasSubstr;

std::vector<uint8_t> FileOf(const std::string& header, size_t data_bytes, uint64_t length_lie = 0) {
  const uint64_t length = length_lie != 0 ? length_lie : header.size();
  std::vector<uint8_t> out(8 + header.size() + data_bytes);
  std::memcpy(out.data(), &length, 8);
  std::memcpy(out.data() + 8, header.data(), header.size());
  for (size_t i = 0; i < data_bytes; ++i) out[8 + header.size() + i] = static_cast<uint8_t>(i);
  return out;
}

std::string Entry(const std::string& name, const std::string& type, const std::string& shape, uint64_t begin,
                  uint64_t end) {
  return StrCat("\"", name, "\":{\"dtype\":\"", type, "\",\"shape\":", shape, ",\"data_offsets\":[", begin, ",", end,
                "]}");
}

// What the reader says of a file with this header and 16 bytes of data.
std::string RefusalOf(const std::string& header, size_t data_bytes = 16, uint64_t length_lie = 0) {
  const std::vector<uint8_t> file = FileOf(header, data_bytes, length_lie);
  const auto read = SafetensorsFile::Parse(file, "F");
  return read.ok() ? "ok" : std::string(read.status().message());
}

TEST(Safetensors, ReadsTensorsAndIgnoresMetadata) {
  const std::vector<uint8_t> file =
      FileOf("{\"__metadata__\":{\"format\":\"pt\"}," + Entry("b", "BF16", "[2,2]", 8, 16) + "," +
                 Entry("a", "F32", "[2]", 0, 8) + "}   ",
             16);
  const auto read = SafetensorsFile::Parse(file, "F");
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ((*read)->tensors().size(), 2u);
  EXPECT_EQ((*read)->tensors()[0].name, "a");
  const SafeTensor* b = (*read)->Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_THAT(b->shape, testing::ElementsAre(2, 2));
  EXPECT_EQ((*read)->Bytes(*b)[0], 8);
  EXPECT_EQ((*read)->Find("c"), nullptr);
}

TEST(Safetensors, EmptyTensorsAndScalarsAreFine) {
  EXPECT_EQ(RefusalOf("{" + Entry("e", "F32", "[0,3]", 0, 0) + "," + Entry("s", "F64", "[]", 0, 8) + "," +
                      Entry("t", "I8", "[8]", 8, 16) + "}"),
            "ok");
}

TEST(Safetensors, HeaderLengthIsCheckedAgainstTheFile) {
  EXPECT_THAT(RefusalOf("{}", 0, 1'000'000), HasSubstr("header of 1000000 bytes, 2 bytes follow"));
  EXPECT_THAT(RefusalOf("{}", 0, ~uint64_t{0}), HasSubstr("header of 18446744073709551615 bytes"));
  EXPECT_THAT(std::string(SafetensorsFile::Parse({}, "F").status().message()), HasSubstr("0 bytes are too few"));
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const std::vector<uint8_t> file = FileOf("{" + Entry("a", "F32", "[4]", 0, 16) + "}", 16);
  for (size_t n = 0; n < file.size(); ++n) {
    EXPECT_FALSE(SafetensorsFile::Parse({file.data(), n}, "F").ok()) << n << " bytes";
  }
}

TEST(Safetensors, OffsetsOutsideTheDataAreRefused) {
  EXPECT_THAT(RefusalOf("{" + Entry("a", "F32", "[8]", 0, 32) + "}"), HasSubstr("\"a\" spans bytes 0 to 32 of 16"));
  EXPECT_THAT(RefusalOf("{" + Entry("a", "F32", "[4]", 16, 0) + "}"), HasSubstr("spans bytes 16 to 0"));
  EXPECT_THAT(RefusalOf("{" + Entry("a", "F32", "[4]", ~uint64_t{0} - 15, ~uint64_t{0}) + "}"),
              HasSubstr("spans bytes 18446744073709551600"));
  EXPECT_THAT(RefusalOf("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[-16,0]}}"),
              HasSubstr("the number -16 is not expected"));
  EXPECT_THAT(RefusalOf("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16,16]}}"),
              HasSubstr("3 numbers instead of 2"));
  EXPECT_THAT(RefusalOf("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,1e400]}}"), HasSubstr("not JSON"));
}

TEST(Safetensors, ShapeMustFitTheBytes) {
  EXPECT_THAT(RefusalOf("{" + Entry("a", "F32", "[3]", 0, 16) + "}"),
              HasSubstr("has 16 bytes, its shape and type F32 need 12"));
  EXPECT_THAT(RefusalOf("{" + Entry("a", "F32", "[4611686018427387905]", 0, 16) + "}"),
              HasSubstr("need more than 2^64"));
  EXPECT_THAT(RefusalOf("{" + Entry("a", "F32", "[4294967296,4294967296,4294967296]", 0, 16) + "}"),
              HasSubstr("need more than 2^64"));
  EXPECT_THAT(RefusalOf("{" + Entry("a", "F32", "[18446744073709551615]", 0, 16) + "}"),
              HasSubstr("dimension 18446744073709551615"));
  EXPECT_THAT(RefusalOf("{" + Entry("a", "F32", "[1,1,1,1,1,1,1,1,4]", 0, 16) + "}"), HasSubstr("more than 8 numbers"));
  EXPECT_THAT(RefusalOf("{" + Entry("a", "F32", "[2.5]", 0, 16) + "}"), HasSubstr("the number 2.5 is not expected"));
}

TEST(Safetensors, OverlapsAndHolesAreRefused) {
  EXPECT_THAT(RefusalOf("{" + Entry("a", "F32", "[4]", 0, 16) + "," + Entry("b", "F32", "[2]", 8, 16) + "}"),
              HasSubstr("\"b\" begins at byte 8, the tensor before it ends at 16"));
  EXPECT_THAT(RefusalOf("{" + Entry("a", "F32", "[1]", 0, 4) + "," + Entry("b", "F32", "[2]", 8, 16) + "}"),
              HasSubstr("begins at byte 8"));
  EXPECT_THAT(RefusalOf("{" + Entry("a", "F32", "[2]", 0, 8) + "}"),
              HasSubstr("the tensors take 8 bytes, the file has 16"));
}

TEST(Safetensors, DuplicateNamesAndFieldsAreRefused) {
  EXPECT_THAT(RefusalOf("{" + Entry("a", "F32", "[2]", 0, 8) + "," + Entry("a", "F32", "[2]", 8, 16) + "}"),
              HasSubstr("\"a\" is there twice"));
  EXPECT_THAT(RefusalOf("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}"),
              HasSubstr("the field is there twice"));
}

TEST(Safetensors, ASizeThatWrapsAroundIsNotNothing) {
  EXPECT_THAT(RefusalOf("{" + Entry("a", "BF16", "[2305843009213693952,4]", 0, 0) + "}", 0),
              HasSubstr("has 0 bytes, its shape and type BF16 need more than 2^64"));
}

TEST(Safetensors, NamesInMessagesArePrintableAndCut) {
  EXPECT_THAT(RefusalOf("{" + Entry(R"(\u001b[2J\n)", "F32", "[2]", 0, 16) + "}"),
              HasSubstr(R"("\x1b[2J\n" has 16 bytes)"));
  EXPECT_LT(RefusalOf("{" + Entry(std::string(70000, 'n'), "F32", "[2]", 0, 16) + "}").size(), 400u);
}

TEST(Safetensors, AnythingElseIsRefused) {
  EXPECT_THAT(RefusalOf("[]"), HasSubstr("an array is not expected"));
  EXPECT_THAT(RefusalOf("7"), HasSubstr("not expected"));
  EXPECT_THAT(RefusalOf("{"), HasSubstr("not JSON"));
  EXPECT_THAT(RefusalOf(""), HasSubstr("not JSON"));
  EXPECT_THAT(RefusalOf("{\"a\":3}"), HasSubstr("\"a\": the number 3 is not expected"));
  EXPECT_THAT(RefusalOf("{\"a\":{\"dtype\":\"F32\"}}"), HasSubstr("dtype, shape or data_offsets is missing"));
  EXPECT_THAT(RefusalOf("{\"a\":{\"colour\":1}}"), HasSubstr("unknown field"));
  EXPECT_THAT(RefusalOf("{\"a\":{\"dtype\":{}}}"), HasSubstr("an object is not expected"));
  EXPECT_THAT(RefusalOf("{\"a\":{\"dtype\":\"F32\",\"shape\":[[1]],\"data_offsets\":[0,4]}}"),
              HasSubstr("an array is not expected"));
  EXPECT_THAT(RefusalOf("{" + Entry("\xff\xfe", "F32", "[4]", 0, 16) + "}"), HasSubstr("not JSON"));
  EXPECT_THAT(RefusalOf(std::string(100000, '[')), HasSubstr("an array is not expected"));
  EXPECT_THAT(RefusalOf("{\"a\":" + std::string(100000, '{')), HasSubstr("not JSON"));
}

}  // namespace
}  // namespace baton::engine
