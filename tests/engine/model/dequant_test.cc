// GGUF blocks beside the reference package's floats, bit for bit (make_goldens.py).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "common/half.h"
#include "common/json.h"
#include "engine/model/files/gguf_dequant.h"
#include "engine/model/weight_source.h"

namespace baton::engine {
namespace {

std::vector<uint8_t> FromHex(const std::string& hex) {
  std::vector<uint8_t> out(hex.size() / 2);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint8_t>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  return out;
}

class Blocks : public testing::TestWithParam<GgmlType> {};

TEST_P(Blocks, AreTheReferencesFloats) {
  std::ifstream in("tests/engine/model/goldens/blocks.json");
  const nlohmann::json json = nlohmann::json::parse(in);
  const nlohmann::json& golden = json.at(std::string(GgmlBlockOf(GetParam()).name));
  const std::vector<uint8_t> blocks = FromHex(golden["blocks"]), bytes = FromHex(golden["floats"]);
  std::vector<float> wanted(bytes.size() / 4), got(wanted.size());
  std::memcpy(wanted.data(), bytes.data(), bytes.size());
  ASSERT_EQ(wanted.size(), 2u * GgmlBlockOf(GetParam()).elements);
  Dequantize(GetParam(), blocks.data(), static_cast<int64_t>(got.size()), got.data());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], wanted[i]) << "element " << i;
}

INSTANTIATE_TEST_SUITE_P(All, Blocks,
                         testing::Values(GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ5_0,
                                         GgmlType::kQ5_1, GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K),
                         [](const auto& info) { return std::string(GgmlBlockOf(info.param).name); });

TEST(Half, RoundsToNearestEvenAndBack) {
  EXPECT_EQ(Bf16OfFloat(1.0f), 0x3f80);
  EXPECT_EQ(Bf16OfFloat(1.00390625f), 0x3f80);  // halfway, to even
  EXPECT_EQ(Bf16OfFloat(1.01171875f), 0x3f82);  // halfway, to even
  EXPECT_EQ(FloatOfBf16(0xc040), -3.0f);
  EXPECT_TRUE(std::isnan(FloatOfBf16(Bf16OfFloat(NAN))));
  EXPECT_EQ(FloatOfF16(0x3c00), 1.0f);
  EXPECT_EQ(FloatOfF16(0xc400), -4.0f);
  EXPECT_EQ(FloatOfF16(0x0001), 0x1p-24f);
  EXPECT_EQ(FloatOfF16(0x7bff), 65504.0f);
  EXPECT_TRUE(std::isinf(FloatOfF16(0x7c00)));
  EXPECT_TRUE(std::isnan(FloatOfF16(0x7e00)));
}

TEST(ConvertElements, ReadsUnalignedBytes) {
  uint8_t bytes[9] = {0, 0x80, 0x3f, 0x00, 0x40};
  float out[2];
  ConvertElements(DType::kBF16, bytes + 1, DType::kF32, out, 2);
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], 2.0f);
}

TEST(WeightSource, ThreadsAndRowsChangeNothing) {
  ModelConfig config;
  config.vocab_size = 1031;  // rows that begin inside a group of four random numbers
  config.hidden_size = 1023;
  const std::unique_ptr<WeightSource> source = MakeDummyWeights(config, 5);
  const WeightRule rule = RuleOf(config, Weight::kEmbedding);
  std::vector<uint16_t> whole(rule.elements()), threaded(whole.size()), by_row(whole.size());
  ASSERT_TRUE(source->Read(rule, DType::kBF16, whole.data()).ok());
  ASSERT_TRUE(source->Read(rule, DType::kBF16, threaded.data(), 3).ok());
  for (int64_t row = 0; row < rule.rows(); ++row)
    source->ReadRows(rule, row, 1, DType::kBF16, by_row.data() + row * rule.columns());
  EXPECT_EQ(threaded, whole);
  EXPECT_EQ(by_row, whole);
}

}  // namespace
}  // namespace baton::engine
