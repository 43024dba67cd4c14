// The KV of well-known models, as their publishers' shapes give it: K and V · layers · KV heads · head size · 2 bytes.
#include "plan/known_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "common/json.h"
#include "engine/model/config/config_reader.h"
#include "engine/model/kv_groups.h"

namespace baton::plan {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST(KnownModels, KvBytesOfATokenAreThoseOfThePublishedShapes) {
  const std::map<std::string, int64_t> bytes = {
      {"llama-2-7b", 524288},  {"llama-2-13b", 819200},     {"llama-2-70b", 327680},       {"llama-3-8b", 131072},
      {"llama-3-70b", 327680}, {"llama-3.1-8b", 131072},    {"llama-3.1-70b", 327680},     {"llama-3.1-405b", 516096},
      {"llama-3.2-1b", 32768}, {"llama-3.2-3b", 114688},    {"smollm2-135m", 23040},       {"smollm2-1.7b", 196608},
      {"qwen2.5-0.5b", 12288}, {"qwen2.5-1.5b", 28672},     {"qwen2.5-7b", 57344},         {"qwen2.5-14b", 196608},
      {"qwen2.5-32b", 262144}, {"qwen2.5-72b", 327680},     {"qwen3-0.6b", 114688},        {"qwen3-8b", 147456},
      {"qwen3-32b", 262144},   {"mistral-7b-v0.3", 131072}, {"mistral-small-24b", 163840}, {"gemma-3-1b", 26624},
      {"smollm3-3b", 73728},   {"gemma-2-9b", 344064}};
  ASSERT_GE(KnownModels().size(), 20u);
  for (const KnownModel& model : KnownModels()) {
    const auto read = engine::ParseHfConfig(nlohmann::json::parse(ConfigJson(model)), std::string(model.name));
    ASSERT_TRUE(read.ok()) << read.status();
    const auto layout = engine::MakeKvLayout(read->config, DType::kBF16, 16);
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_EQ(layout->BytesPerToken(), bytes.at(std::string(model.name))) << model.name;
  }
}

TEST(KnownModels, OnlyThoseHaveAWindowWhosePublishedConfigHasOne) {
  const std::map<std::string, int> windows = {{"gemma-2-9b", 4096}, {"gemma-3-1b", 512}};
  for (const KnownModel& model : KnownModels()) {
    const auto read = engine::ParseHfConfig(nlohmann::json::parse(ConfigJson(model)), std::string(model.name));
    ASSERT_TRUE(read.ok()) << read.status();
    int longest = 0;
    for (const auto& layer : read->config.layers) longest = std::max(longest, layer.window);
    const auto published = windows.find(std::string(model.name));
    EXPECT_EQ(longest, published == windows.end() ? 0 : published->second) << model.name;
  }
}

TEST(KnownModels, TheTableHasARowForEachAndItsType) {
  const std::string table = KvTable(DType::kBF16);
  EXPECT_EQ(static_cast<size_t>(std::ranges::count(table, '\n')), KnownModels().size() + 1);
  EXPECT_THAT(table, ContainsRegex("llama-3.1-70b +70.55 B .* 327680 +3276\n")) << "tokens in a GiB";
  EXPECT_THAT(table, ContainsRegex("qwen2.5-7b +7.62 B"));
  EXPECT_THAT(KvTable(DType::kF32), ContainsRegex("llama-3-8b .* 262144 +4096\n"));
}

TEST(KnownModels, AShapeIsReadAndWhatIsMissingIsNamed) {
  const auto shape = ShapeOf("layers=4,hidden=64,heads=4,kv-heads=2,inner=128,vocab=1000,context=512,tied=1");
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->head_dim, 16);
  EXPECT_EQ(shape->context, 512);
  EXPECT_TRUE(shape->tied);
  EXPECT_EQ(ShapeOf("llama-3-8b")->kv_heads, 8);
  EXPECT_THAT(ShapeOf("llama-3-8B").status().message(), HasSubstr("did you mean llama-3-8b"));
  EXPECT_THAT(ShapeOf("layers=4,hidden=64").status().message(), HasSubstr("heads is missing"));
  EXPECT_THAT(ShapeOf("layers=4,hidden=sixty").status().message(), HasSubstr("\"hidden=sixty\" is no size"));
  EXPECT_THAT(ShapeOf("layers=4,width=3").status().message(), HasSubstr("\"width=3\" is no size"));
}

}  // namespace
}  // namespace baton::plan
