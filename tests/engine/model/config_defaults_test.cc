// What a config.json leaves out: the family, or the kind of rope, says it instead.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/json.h"
#include "engine/model/config/config_reader.h"

namespace baton::engine {
namespace {

using nlohmann::json;

json SmallConfig(const std::string& family, const json& scaling) {
  json config = {{"model_type", family},        {"hidden_size", 256},       {"intermediate_size", 512},
                 {"num_hidden_layers", 6},      {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                 {"vocab_size", 320},           {"rms_norm_eps", 1e-5},     {"max_position_embeddings", 4096},
                 {"query_pre_attn_scalar", 64}, {"rope_theta", 10000.0}};
  if (!scaling.is_null()) config["rope_scaling"] = scaling;
  return config;
}

ModelConfig Read(const json& config) {
  const auto read = ParseHfConfig(config, "C");
  EXPECT_TRUE(read.ok()) << read.status();
  return read.ok() ? read->config : ModelConfig();
}

std::vector<float> Frequencies(const json& config) {
  const ModelConfig read = Read(config);
  return read.ropes.empty() ? std::vector<float>() : read.ropes[0].inv_freq;
}

TEST(ConfigDefaults, TheContextThatYarnStretchesIsTheModelsWhereNoOtherIsSaid) {
  for (const char* family : {"llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma2", "gemma3_text"}) {
    const json unsaid = {{"rope_type", "yarn"}, {"factor", 4.0}};
    json said = unsaid, other = unsaid;
    said["original_max_position_embeddings"] = 4096;
    other["original_max_position_embeddings"] = 1024;
    EXPECT_EQ(Frequencies(SmallConfig(family, unsaid)), Frequencies(SmallConfig(family, said))) << family;
    EXPECT_NE(Frequencies(SmallConfig(family, unsaid)), Frequencies(SmallConfig(family, other))) << family;
  }
}

TEST(ConfigDefaults, OfLlama3sStretchOfWavelengths) {
  const json unsaid = {{"rope_type", "llama3"}, {"original_max_position_embeddings", 1024}};
  json said = unsaid;
  said.update({{"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}});
  EXPECT_EQ(Frequencies(SmallConfig("llama", unsaid)), Frequencies(SmallConfig("llama", said)));
}

TEST(ConfigDefaults, AHeadOfQwen3HasItsOwnSize) {
  EXPECT_EQ(Read(SmallConfig("qwen3", {})).head_dim, 128);
  EXPECT_EQ(Read(SmallConfig("qwen2", {})).head_dim, 64);
}

}  // namespace
}  // namespace baton::engine
