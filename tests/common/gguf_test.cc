#include "common/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <random>

#include "tests/common/gguf_builder.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kF32 = 0, kQ4_K = 12, kQ8_0 = 8;

GgufBuilder Valid() {
  GgufBuilder b;
  b.AddString("general.architecture", "llama").AddUint("llama.block_count", 2);
  b.AddStrings("tokens", {"a", "", "ccc"});
  b.AddNumbers<int32_t>("types", GgufValueType::kI32, {1, -3});
  b.AddNumbers<float>("scores", GgufValueType::kF32, {0.5f, -1.0f});
  b.AddTensor("w", {8, 2}, kF32, 0).AddTensor("q", {64}, kQ8_0, 64);
  return b;
}

std::string ErrorOf(const std::vector<uint8_t>& bytes) {
  const auto file = GgufFile::Parse(bytes, "test.gguf");
  if (file.ok()) return "no error";
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("test.gguf"));
  return std::string(file.status().message());
}

TEST(Gguf, ReadsMetadataAndTensors) {
  const auto bytes = Valid().Build(64 + 68);
  const auto file = GgufFile::Parse(bytes, "test.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  const GgufFile& f = **file;
  EXPECT_EQ(f.version(), 3u);
  EXPECT_EQ(*f.GetString("general.architecture"), "llama");
  EXPECT_EQ(*f.GetUint("llama.block_count"), 2u);
  EXPECT_THAT(*f.GetStrings("tokens"), ElementsAre("a", "", "ccc"));
  EXPECT_THAT(*f.GetInts("types"), ElementsAre(1, -3));
  EXPECT_THAT(*f.GetFloats("scores"), ElementsAre(0.5f, -1.0f));
  ASSERT_EQ(f.tensors().size(), 2u);
  const GgufTensor* q = f.FindTensor("q");
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(q->elements(), 64u);
  EXPECT_EQ(q->bytes, 68u);  // two blocks of 34
  EXPECT_EQ(f.Bytes(*q).size(), 68u);
  EXPECT_EQ(f.Bytes(*q)[0], 64);
  EXPECT_EQ(f.FindTensor("absent"), nullptr);
}

TEST(Gguf, AskingForAnotherTypeIsAnErrorThatNamesBoth) {
  const auto bytes = Valid().Build(64 + 68);
  const auto file = GgufFile::Parse(bytes, "test.gguf");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->GetUint("absent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string((*file)->GetString("llama.block_count").status().message()), HasSubstr("is uint32"));
  EXPECT_THAT(std::string((*file)->GetFloats("types").status().message()), HasSubstr("array of 2 int32"));
  EXPECT_FALSE((*file)->GetBool("tokens").ok());
  EXPECT_FALSE((*file)->GetInts("general.architecture").ok());
}

TEST(Gguf, NegativeIsNotUnsigned) {
  const auto bytes = GgufBuilder().AddRaw("n", GgufValueType::kI32, GgufBuilder::Bytes(int32_t{-7})).Build();
  const auto file = GgufFile::Parse(bytes, "test.gguf");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(*(*file)->GetInt("n"), -7);
  EXPECT_THAT(std::string((*file)->GetUint("n").status().message()), HasSubstr("-7"));
}

TEST(Gguf, OtherFilesAreRefused) {
  EXPECT_THAT(ErrorOf({}), HasSubstr("not a GGUF file"));
  EXPECT_THAT(ErrorOf({'G', 'G', 'M', 'L', 1, 0, 0, 0}), HasSubstr("not a GGUF file"));
  GgufBuilder b = Valid();
  b.version = 1;
  EXPECT_THAT(ErrorOf(b.Build(132)), HasSubstr("version 1"));
  b.version = 0x03000000;
  EXPECT_THAT(ErrorOf(b.Build(132)), HasSubstr("big-endian"));
}

TEST(Gguf, EveryTruncationIsRefused) {
  const auto bytes = Valid().Build(64 + 68);
  for (size_t n = 0; n < bytes.size(); ++n) {
    const std::vector<uint8_t> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    EXPECT_NE(ErrorOf(cut), "no error") << n << " of " << bytes.size() << " bytes";
  }
}

TEST(Gguf, AbsurdCountsAreRefusedBeforeAnythingIsAllocated) {
  GgufBuilder tensors = Valid();
  tensors.tensor_count_lie = int64_t{1} << 60;
  EXPECT_THAT(ErrorOf(tensors.Build(132)), HasSubstr("tensor count 1152921504606846976"));
  GgufBuilder pairs = Valid();
  pairs.pair_count_lie = int64_t{1} << 60;
  EXPECT_THAT(ErrorOf(pairs.Build(132)), HasSubstr("metadata count 1152921504606846976"));
  const std::string array = GgufBuilder::Bytes(uint32_t{8}) + GgufBuilder::Bytes(uint64_t{1} << 61);
  EXPECT_THAT(ErrorOf(GgufBuilder().AddRaw("k", GgufValueType::kArray, array).Build()),
              HasSubstr("array of 2305843009213693952 elements"));
}

TEST(Gguf, StringLengthsOfTwoToThe63AreRefused) {
  const std::string length = GgufBuilder::Bytes(uint64_t{1} << 63);
  EXPECT_THAT(ErrorOf(GgufBuilder().AddRaw("k", GgufValueType::kString, length).Build()),
              HasSubstr("string length 9223372036854775808"));
  EXPECT_THAT(ErrorOf(GgufBuilder().AddRaw("k", GgufValueType::kString, GgufBuilder::Bytes(~uint64_t{0})).Build()),
              HasSubstr("string length 18446744073709551615"));
}

TEST(Gguf, DuplicatesAreRefusedByName) {
  EXPECT_THAT(ErrorOf(GgufBuilder().AddUint("twice", 1).AddUint("twice", 1).Build()),
              HasSubstr("duplicate key \"twice\""));
  EXPECT_THAT(ErrorOf(GgufBuilder().AddTensor("t", {1}, kF32, 0).AddTensor("t", {1}, kF32, 32).Build(64)),
              HasSubstr("duplicate tensor \"t\""));
}

TEST(Gguf, TensorsMustLieInTheFile) {
  EXPECT_THAT(ErrorOf(GgufBuilder().AddTensor("t", {16}, kF32, 32).Build(64)), HasSubstr("the file has"));
  EXPECT_THAT(ErrorOf(GgufBuilder().AddTensor("t", {16}, kF32, ~uint64_t{31}).Build(64)), HasSubstr("overflows"));
  EXPECT_THAT(ErrorOf(GgufBuilder().AddTensor("t", {16}, kF32, 7).Build(256)), HasSubstr("alignment 32"));
  EXPECT_THAT(ErrorOf(GgufBuilder().AddTensor("a", {16}, kF32, 0).AddTensor("b", {4}, kF32, 32).Build(256)),
              HasSubstr("overlap"));
}

TEST(Gguf, SizesThatOverflowAreRefused) {
  const uint64_t big = uint64_t{1} << 33;
  EXPECT_THAT(ErrorOf(GgufBuilder().AddTensor("t", {big, big}, kF32, 0).Build(64)), HasSubstr("overflows"));
  EXPECT_THAT(ErrorOf(GgufBuilder().AddTensor("t", {uint64_t{1} << 62}, kF32, 0).Build(64)), HasSubstr("overflows"));
  EXPECT_THAT(ErrorOf(GgufBuilder().AddTensor("t", {4, 0}, kF32, 0).Build(64)), HasSubstr("dimension 1 is 0"));
  EXPECT_THAT(ErrorOf(GgufBuilder().AddTensor("t", {}, kF32, 0).Build(64)), HasSubstr("0 dimensions"));
  EXPECT_THAT(ErrorOf(GgufBuilder().AddTensor("t", {1, 1, 1, 1, 1}, kF32, 0).Build(64)), HasSubstr("5 dimensions"));
}

TEST(Gguf, TypesAreCheckedByName) {
  EXPECT_THAT(ErrorOf(GgufBuilder().AddTensor("t", {4}, 4242, 0).Build(64)), HasSubstr("unknown type 4242"));
  EXPECT_THAT(ErrorOf(GgufBuilder().AddTensor("t", {32}, kQ4_K, 0).Build(256)),
              HasSubstr("Q4_K needs a multiple of 256"));
  EXPECT_THAT(ErrorOf(GgufBuilder().AddRaw("k", static_cast<GgufValueType>(77), "xxxx").Build()),
              HasSubstr("unknown value type 77"));
  const std::string nested = GgufBuilder::Bytes(uint32_t{9}) + GgufBuilder::Bytes(uint64_t{1});
  EXPECT_THAT(ErrorOf(GgufBuilder().AddRaw("k", GgufValueType::kArray, nested).Build()), HasSubstr("arrays of type 9"));
}

TEST(Gguf, AlignmentMustBeAPowerOfTwo) {
  for (uint32_t bad : {0u, 3u, 48u, 1u << 31}) {
    EXPECT_THAT(ErrorOf(GgufBuilder().AddUint("general.alignment", bad).Build()), HasSubstr("power of two")) << bad;
  }
  GgufBuilder b =
      GgufBuilder().AddUint("general.alignment", 64).AddTensor("a", {1}, kF32, 0).AddTensor("b", {1}, kF32, 64);
  b.alignment = 64;
  EXPECT_EQ(ErrorOf(b.Build(128)), "no error");
  EXPECT_THAT(ErrorOf(GgufBuilder().AddString("general.alignment", "32").Build()), HasSubstr("string"));
}

TEST(Gguf, RandomDamageNeverCrashes) {
  const auto valid = Valid().Build(64 + 68);
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    auto bytes = valid;
    for (int k = 0; k < 1 + round % 4; ++k) bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
    const auto file = GgufFile::Parse(bytes, "test.gguf");
    if (!file.ok()) continue;
    for (const GgufTensor& t : (*file)->tensors()) {  // what was let through is readable
      const auto data = (*file)->Bytes(t);
      ASSERT_LE(data.data() + data.size(), bytes.data() + bytes.size());
    }
  }
}

TEST(Gguf, OpenNamesThePath) {
  const auto absent = GgufFile::Open("/nonexistent/model.gguf");
  EXPECT_EQ(absent.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(absent.status().message()), HasSubstr("/nonexistent/model.gguf"));
  EXPECT_EQ(GgufFile::Open("/").status().code(), absl::StatusCode::kInvalidArgument);

  const std::string path = ::testing::TempDir() + "/baton_gguf_test.gguf";
  const auto bytes = Valid().Build(64 + 68);
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 2u);
  std::remove(path.c_str());
}

TEST(Gguf, BlockSizesAreThoseOfTheFormat) {
  EXPECT_EQ(GgmlBlockOf(GgmlType::kQ4_0).bytes, 18u);
  EXPECT_EQ(GgmlBlockOf(GgmlType::kQ4_1).bytes, 20u);
  EXPECT_EQ(GgmlBlockOf(GgmlType::kQ5_0).bytes, 22u);
  EXPECT_EQ(GgmlBlockOf(GgmlType::kQ5_1).bytes, 24u);
  EXPECT_EQ(GgmlBlockOf(GgmlType::kQ8_0).bytes, 34u);
  EXPECT_EQ(GgmlBlockOf(GgmlType::kQ6_K).bytes, 210u);
  EXPECT_EQ(GgmlBlockOf(static_cast<GgmlType>(4)).elements, 0u);
}

}  // namespace
}  // namespace baton
