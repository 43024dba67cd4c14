// config.json and GGUF metadata as ModelConfig: what real models' files say, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "common/json.h"
#include "common/str_cat.h"
#include "engine/model/config/config_reader.h"
#include "engine/model/weight_rules.h"
#include "tests/common/gguf_builder.h"

namespace baton::engine {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json Llama() {
  return json::parse(R"({"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": true, "hidden_act": "silu", "attention_bias": false,
    "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
    "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}})");
}

// Llama's config with some fields changed; null removes one.
std::string ErrorOf(json changes) {
  json config = Llama();
  for (const auto& [key, value] : changes.items()) {
    if (value == "absent")
      config.erase(key);
    else
      config[key] = value;
  }
  const auto read = ParseHfConfig(config, "C");
  return read.ok() ? "ok" : std::string(read.status().message());
}

TEST(HfConfig, Llama32) {
  const auto read = ParseHfConfig(Llama(), "C");
  ASSERT_TRUE(read.ok()) << read.status();
  const ModelConfig& c = read->config;
  EXPECT_EQ(c.family, "llama");
  EXPECT_EQ(c.num_kv_heads, 8);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_FLOAT_EQ(c.attention_scale, 0.125f);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_FALSE(c.qkv_bias || c.o_bias || c.qk_norm || c.post_norms);
  EXPECT_THAT(c.eos_token_ids, testing::ElementsAre(128001, 128008, 128009));
  EXPECT_EQ(c.bos_token_id, 128000);
  EXPECT_EQ(c.layers.size(), 16u);
  EXPECT_EQ(c.ropes[0].inv_freq.size(), 32u);
}

TEST(HfConfig, Qwen25HasBiasesOnQkvAndNoWindow) {
  const auto read = ParseHfConfig(
      json::parse(R"({"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0, "tie_word_embeddings": true, "use_sliding_window": false, "sliding_window": 32768, "max_window_layers": 21,
    "hidden_act": "silu", "bos_token_id": 151643, "eos_token_id": 151645})"),
      "C");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->config.head_dim, 64);
  EXPECT_TRUE(read->config.qkv_bias);
  EXPECT_FALSE(read->config.o_bias);
  for (const LayerConfig& layer : read->config.layers) EXPECT_EQ(layer.window, 0);
}

TEST(HfConfig, MistralsWindowIsNoneWhenNullAnd4096WhenAbsent) {
  json config =
      json::parse(R"({"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768, "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0, "sliding_window": null})");
  EXPECT_EQ(ParseHfConfig(config, "C")->config.layers[5].window, 0);
  config.erase("sliding_window");
  EXPECT_EQ(ParseHfConfig(config, "C")->config.layers[5].window, 4096);
  config["sliding_window"] = 40000;  // no context reaches it
  EXPECT_EQ(ParseHfConfig(config, "C")->config.layers[5].window, 0);
}

TEST(HfConfig, SmolLm3TurnsTheLayersThatItsConfigNames) {
  json config = json::parse(R"({"model_type": "smollm3", "num_hidden_layers": 4})");
  const auto ropes = [&config] {
    const auto read = ParseHfConfig(config, "C");
    std::vector<int> out;
    if (read.ok()) {
      for (const LayerConfig& layer : read->config.layers) out.push_back(layer.rope);
    }
    return out;
  };
  EXPECT_THAT(ropes(), testing::ElementsAre(0, 0, 0, 1)) << "every fourth has none";
  config["no_rope_layer_interval"] = 2;
  EXPECT_THAT(ropes(), testing::ElementsAre(0, 1, 0, 1));
  config["no_rope_layers"] = {0, 1, 1, 0};
  EXPECT_THAT(ropes(), testing::ElementsAre(1, 0, 0, 1));
  EXPECT_THAT(ParseHfConfig(config, "C")->config.ropes[1].inv_freq, testing::Each(0.0f));
  config["no_rope_layers"] = {1, 0};
  EXPECT_THAT(ParseHfConfig(config, "C").status().ToString(), HasSubstr("no_rope_layers has 2 entries for 4 layers"));
}

TEST(HfConfig, Gemma2SlidesEveryOtherLayerAndCaps) {
  const auto read = ParseHfConfig(json::parse(R"({"model_type": "gemma2", "num_hidden_layers": 3})"), "C");
  ASSERT_TRUE(read.ok()) << read.status();
  const ModelConfig& c = read->config;
  EXPECT_EQ(c.layers[0].window, 4096);
  EXPECT_EQ(c.layers[1].window, 0);
  EXPECT_EQ(c.layers[2].window, 4096);
  EXPECT_EQ(c.attention_softcap, 50.0f);
  EXPECT_EQ(c.logit_softcap, 30.0f);
  EXPECT_TRUE(c.post_norms && c.tied_embeddings && !c.qk_norm);
}

TEST(HfConfig, ATextTowerThatIsNoObjectIsRefused) {
  for (const json& odd : {json(0), json("x"), json::array(), json(true)}) {
    const absl::Status status = ParseHfConfig({{"model_type", "gemma3"}, {"text_config", odd}}, "D").status();
    EXPECT_THAT(status.ToString(), HasSubstr("D: text_config is no object: " + odd.dump()));
  }
  EXPECT_TRUE(ParseHfConfig({{"model_type", "gemma3"}, {"text_config", nullptr}}, "D").ok());
}

TEST(HfConfig, MultimodalGemma3TakesItsDefaultsAndTheTextTower) {
  const auto read = ParseHfConfig(
      json::parse(R"({"model_type": "gemma3", "eos_token_id": [1, 106], "text_config": {"hidden_size": 2560,
    "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024}, "vision_config": {"hidden_size": 1152}})"),
      "C");
  ASSERT_TRUE(read.ok()) << read.status();
  const ModelConfig& c = read->config;
  EXPECT_EQ(c.family, "gemma3");
  EXPECT_EQ(c.num_heads, 8);
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_EQ(c.vocab_size, 262208);
  EXPECT_TRUE(c.tied_embeddings && c.post_norms && c.qk_norm);
  EXPECT_EQ(c.norm_offset, 1.0f);
  EXPECT_EQ(c.activation, kernels::Activation::kGeluTanh);
  EXPECT_EQ(c.layers[4].window, 1024);
  EXPECT_EQ(c.layers[5].window, 0);
  EXPECT_FLOAT_EQ(c.ropes[c.layers[5].rope].inv_freq[0], 1.0f / 8);  // only full layers are scaled
  EXPECT_FLOAT_EQ(c.ropes[c.layers[4].rope].inv_freq[0], 1.0f);
  EXPECT_THAT(c.eos_token_ids, testing::ElementsAre(1, 106));
}

TEST(HfConfig, NewerConfigsKeepRopeAndLayerTypesElsewhere) {
  const auto read = ParseHfConfig(
      json::parse(R"({"model_type": "gemma3_text", "num_hidden_layers": 2, "layer_types": ["full_attention",
    "sliding_attention"], "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}})"),
      "C");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->config.layers[0].window, 0);
  EXPECT_EQ(read->config.layers[1].window, 4096);
  EXPECT_FLOAT_EQ(read->config.ropes[0].inv_freq[0], 0.25f);
  EXPECT_FLOAT_EQ(read->config.ropes[1].inv_freq[0], 1.0f);
}

TEST(HfConfig, AWrongFieldIsNamedWithItsValue) {
  EXPECT_EQ(ErrorOf({}), "ok");
  EXPECT_THAT(ErrorOf({{"model_type", "mamba"}}), HasSubstr("model_type \"mamba\" is not supported (llama, mistral"));
  EXPECT_THAT(ErrorOf({{"model_type", 3}}), HasSubstr("model_type is 3, not a string"));
  EXPECT_THAT(ErrorOf({{"hidden_size", "absent"}}), HasSubstr("hidden_size is missing"));
  EXPECT_THAT(ErrorOf({{"hidden_size", -1}}), HasSubstr("hidden_size is -1, not an integer from 1 to"));
  EXPECT_THAT(ErrorOf({{"hidden_size", 1e300}}), HasSubstr("hidden_size is 1e+300"));
  EXPECT_THAT(ErrorOf({{"hidden_size", 2048.5}}), HasSubstr("hidden_size is 2048.5"));
  EXPECT_EQ(ErrorOf({{"hidden_size", 2048.0}}), "ok");
  EXPECT_THAT(ErrorOf({{"vocab_size", uint64_t{1} << 63}}), HasSubstr("vocab_size is 9223372036854775808"));
  EXPECT_THAT(ErrorOf({{"num_hidden_layers", 0}}), HasSubstr("num_hidden_layers is 0"));
  EXPECT_THAT(ErrorOf({{"num_key_value_heads", 5}}),
              HasSubstr("num_attention_heads 32 is not a multiple of num_key_value_heads 5"));
  EXPECT_THAT(ErrorOf({{"head_dim", 257}}), HasSubstr("head_dim 257 is not supported"));
  EXPECT_THAT(ErrorOf({{"head_dim", "absent"}, {"num_attention_heads", 24}}),
              HasSubstr("hidden_size 2048 is not a multiple"));
  EXPECT_THAT(ErrorOf({{"hidden_act", "relu"}}), HasSubstr("activation \"relu\""));
  EXPECT_THAT(ErrorOf({{"mlp_bias", true}}), HasSubstr("mlp_bias is true"));
  EXPECT_THAT(ErrorOf({{"rope_scaling", {{"rope_type", "longrope"}}}}),
              HasSubstr("rope type \"longrope\" is not supported"));
  EXPECT_THAT(ErrorOf({{"rope_scaling", {{"rope_type", "llama3"}}}}),
              HasSubstr("original_max_position_embeddings is missing"));
  EXPECT_THAT(ErrorOf({{"rope_scaling",
                        {{"rope_type", "llama3"},
                         {"original_max_position_embeddings", 8192},
                         {"low_freq_factor", 4.0},
                         {"high_freq_factor", 4.0}}}}),
              HasSubstr("high_freq_factor 4 is not above low_freq_factor 4"));
  for (const auto& [factor, said] : {std::pair{0.0, "factor 3 is 0"}, {-1.0, "factor 3 is -1"}, {1e9, "is 1e+09"}}) {
    json factors = std::vector<double>(32, 1.0);
    factors[3] = factor;
    EXPECT_THAT(ErrorOf({{"rope_scaling", {{"rope_type", "default"}, {"freq_factors", factors}}}}), HasSubstr(said));
  }
  EXPECT_THAT(ErrorOf({{"rope_theta", 0}}), HasSubstr("rope_theta is 0"));
  EXPECT_THAT(ErrorOf({{"quantization_config", {{"quant_method", "hqq"}}}}), HasSubstr("quant_method \"hqq\""));
  EXPECT_THAT(ErrorOf({{"layer_types", {"full_attention"}}}), HasSubstr("layer_types has 1 entries for 16 layers"));
  EXPECT_THAT(ErrorOf({{"tie_word_embeddings", "yes"}}),
              HasSubstr("tie_word_embeddings is \"yes\", not true or false"));
  EXPECT_THAT(ErrorOf({{"eos_token_id", {1, "x"}}}), HasSubstr("eos_token_id"));
}

TEST(HfConfig, OverridesStandOverItsFieldsTheLaterOverTheEarlierAndAreInTheTextOfTheDigest) {
  const ReadConfig own = ParseHfConfig(Llama(), "c").value();
  const ReadConfig over =
      ParseHfConfig(Llama(), "c", {R"({"rope_theta": 7, "eos_token_id": 5})", R"({"rope_theta": 9})"}).value();
  json nine = Llama();
  nine["rope_theta"] = 9;
  EXPECT_EQ(over.config.ropes[0].inv_freq, ParseHfConfig(nine, "c")->config.ropes[0].inv_freq);
  EXPECT_EQ(over.config.eos_token_ids, std::vector<int32_t>{5});
  EXPECT_NE(over.text, own.text);
  EXPECT_EQ(ParseHfConfig(Llama(), "c", {"{}"})->text, own.text);
  EXPECT_THAT(ParseHfConfig(Llama(), "c", {R"({"rope_theta": 0})"}).status().ToString(), HasSubstr("rope_theta is 0"));
  nine["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5}};
  EXPECT_THAT(ParseHfConfig(nine, "c", {R"({"rope_theta": 7})"}).status().ToString(), HasSubstr("has rope_parameters"));
  EXPECT_THAT(ParseHfConfig(Llama(), "c", {"[1]"}).status().ToString(), HasSubstr("[1] is no JSON object"));
}

TEST(HfConfig, FilesThatAreNoConfigs) {
  const std::string directory = testing::TempDir() + "/baton_config_test";
  std::filesystem::create_directories(directory);
  EXPECT_TRUE(absl::IsNotFound(ReadHfConfig(directory + "/nowhere").status()));
  for (const auto& [text, error] :
       {std::pair{"{", "not valid JSON"}, {"[]", "a JSON array, not an object"}, {"", "is empty"}}) {
    std::ofstream(directory + "/config.json") << text;
    EXPECT_THAT(ReadHfConfig(directory).status().ToString(), HasSubstr(error));
  }
  std::ofstream(directory + "/config.json") << std::string(1 << 20, '[');
  EXPECT_THAT(ReadHfConfig(directory).status().ToString(), HasSubstr("not valid JSON"));
  std::ofstream(directory + "/config.json") << Llama().dump();
  std::ofstream(directory + "/generation_config.json") << R"({"eos_token_id": [128009, 128010, 999999999]})";
  EXPECT_THAT(ReadHfConfig(directory)->config.eos_token_ids, testing::ElementsAre(128001, 128008, 128009, 128010));
  std::filesystem::remove_all(directory);
}

TEST(Rope, FrequenciesAreThoseOfTransformers) {
  std::ifstream in("tests/engine/model/goldens/ropes.json");
  const json goldens = json::parse(in);
  for (const auto& [name, golden] : goldens.items()) {
    const auto read = ParseHfConfig(golden["config"], name);
    ASSERT_TRUE(read.ok()) << read.status();
    const kernels::RopeParams& rope = read->config.ropes[0];
    const std::vector<double> wanted = golden["inv_freq"];
    ASSERT_EQ(rope.inv_freq.size(), wanted.size()) << name;
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(rope.inv_freq[i] / wanted[i], 1, 1e-5) << name << " " << i;
    EXPECT_NEAR(rope.attention_factor, golden["attention_factor"].get<double>(), 1e-6) << name;
  }
}

TEST(Rope, OneOfYarnsTwoScalesIsNone) {
  const float natural = 0.1f * std::log(4.0f) + 1;
  for (const char* alone : {"mscale", "mscale_all_dim"}) {
    json config = Llama();
    config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {alone, 0.7}};
    const auto read = ParseHfConfig(config, "C");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_NEAR(read->config.ropes[0].attention_factor, natural, 1e-6) << alone;
  }
}

TEST(Rope, APartOfTheHeadIsRotatedByFrequenciesOfThatPart) {
  json config = Llama();
  config.erase("rope_scaling");
  config["partial_rotary_factor"] = 0.5;
  json newer = Llama();
  newer.erase("rope_scaling");
  newer["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}, {"partial_rotary_factor", 0.5}};
  for (const json& one : {config, newer}) {
    const auto read = ParseHfConfig(one, "C");
    ASSERT_TRUE(read.ok()) << read.status();
    const kernels::RopeParams& rope = read->config.ropes[0];
    EXPECT_EQ(rope.rotary_dim, 32) << "half of head_dim 64";
    ASSERT_EQ(rope.inv_freq.size(), 16u);
    EXPECT_NEAR(rope.inv_freq[1], std::pow(500000.0, -2.0 / 32), 1e-6);
  }
}

// A GGUF file of one small llama layer: metadata only.
GgufBuilder LlamaFile(const std::string& architecture = "llama") {
  GgufBuilder b;
  const std::string a = architecture + ".";
  b.AddString("general.architecture", architecture).AddUint(a + "block_count", 1).AddUint(a + "embedding_length", 128);
  b.AddUint(a + "feed_forward_length", 256)
      .AddUint(a + "attention.head_count", 2)
      .AddUint(a + "attention.head_count_kv", 1);
  b.AddUint(a + "context_length", 512);
  b.AddRaw(a + "attention.layer_norm_rms_epsilon", GgufValueType::kF32, GgufBuilder::Bytes(1e-5f));
  b.AddRaw(a + "rope.freq_base", GgufValueType::kF32, GgufBuilder::Bytes(50000.0f));
  return b;
}

TEST(GgufConfig, MetadataBecomesTheSameConfig) {
  GgufBuilder b = LlamaFile();
  b.AddUint("tokenizer.ggml.eos_token_id", 2).AddUint("tokenizer.ggml.bos_token_id", 1);
  b.AddStrings("tokenizer.ggml.tokens", {"a", "<s>", "</s>", "<|im_end|>", "<|eot_id|>"});
  b.AddNumbers<int32_t>("tokenizer.ggml.token_type", GgufValueType::kI32, {1, 3, 3, 3, 1});
  b.AddTensor("token_embd.weight", {128, 5}, 0, 0);
  const std::vector<uint8_t> bytes = b.Build(128 * 5 * 4);
  const auto read = ReadGgufConfig(**GgufFile::Parse(bytes, "G"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->config.head_dim, 64);
  EXPECT_EQ(read->config.vocab_size, 5);
  EXPECT_TRUE(read->config.tied_embeddings);
  EXPECT_NEAR(read->config.ropes[0].inv_freq[1], std::pow(50000.0, -2.0 / 64), 1e-6);
  EXPECT_THAT(read->config.eos_token_ids, testing::ElementsAre(2, 3));  // <|eot_id|> is ordinary text in this file
}

// The folder's config in place of the file's own, but for what only the file knows of its tensors.
TEST(GgufConfig, AFolderSaysWhatTheModelIs) {
  GgufBuilder b = LlamaFile();
  b.AddTensor("token_embd.weight", {128, 5}, 0, 0);
  const std::vector<uint8_t> bytes = b.Build(128 * 5 * 4);
  const auto file = GgufFile::Parse(bytes, "G");
  const std::string folder = testing::TempDir() + "config-of-gguf";
  std::filesystem::create_directories(folder);
  const auto read = [&](const std::string& type, const std::string& more) {
    std::ofstream(folder + "/config.json")
        << R"({"model_type": ")" << type << R"(", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
             "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 5, "max_position_embeddings": 4096,
             "rms_norm_eps": 1e-5, "rope_theta": 700.0, "tie_word_embeddings": false)"
        << more << "}";
    std::ofstream(folder + "/generation_config.json") << R"({"eos_token_id": [1, 3]})";
    return ReadGgufConfig(**file, {}, folder);
  };
  const auto config = read("llama", R"(, "eos_token_id": 4)");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->config.max_position_embeddings, 4096) << "the file says 512";
  EXPECT_NEAR(config->config.ropes[0].inv_freq[1], std::pow(700.0, -2.0 / 64), 1e-6);
  EXPECT_TRUE(config->config.tied_embeddings) << "the file has no output.weight";
  EXPECT_THAT(config->config.eos_token_ids, testing::ElementsAre(4, 1, 3));
  EXPECT_THAT(read("qwen2", "").status().ToString(), HasSubstr("model_type \"qwen2\", but G is a model of \"llama\""));
  EXPECT_TRUE(absl::IsNotFound(ReadGgufConfig(**file, {}, folder + "/none").status()));
  for (const char* odd : {"5", "[]", "{}", "true"}) {
    std::ofstream(folder + "/config.json") << R"({"model_type": )" << odd << "}";
    const absl::Status status = ReadGgufConfig(**file, {}, folder).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << odd;
    EXPECT_THAT(status.ToString(), HasSubstr("model_type")) << odd;
  }
}

TEST(GgufConfig, AFactorAloneIsLinear) {
  GgufBuilder b = LlamaFile();
  b.AddRaw("llama.rope.scaling.factor", GgufValueType::kF32, GgufBuilder::Bytes(2.0f));
  b.AddTensor("token_embd.weight", {128, 5}, 0, 0);
  const std::vector<uint8_t> bytes = b.Build(128 * 5 * 4);
  const auto read = ReadGgufConfig(**GgufFile::Parse(bytes, "G"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_FLOAT_EQ(read->config.ropes[0].inv_freq[0], 0.5f);
}

// What a file says of yarn beyond its factor is what an HF config would say.
TEST(GgufConfig, YarnsOwnNumbersAreRead) {
  const auto config = [](const std::vector<std::pair<const char*, float>>& more) {
    GgufBuilder b = LlamaFile();
    b.AddString("llama.rope.scaling.type", "yarn").AddUint("llama.rope.scaling.original_context_length", 128);
    b.AddRaw("llama.rope.scaling.factor", GgufValueType::kF32, GgufBuilder::Bytes(4.0f));
    for (const auto& [key, value] : more) {
      b.AddRaw(StrCat("llama.rope.scaling.", key), GgufValueType::kF32, GgufBuilder::Bytes(value));
    }
    b.AddTensor("token_embd.weight", {128, 5}, 0, 0);
    const std::vector<uint8_t> bytes = b.Build(128 * 5 * 4);
    return ReadGgufConfig(**GgufFile::Parse(bytes, "G"));
  };
  json hf = {{"model_type", "llama"},          {"hidden_size", 128},
             {"intermediate_size", 256},       {"num_hidden_layers", 1},
             {"num_attention_heads", 2},       {"num_key_value_heads", 1},
             {"rms_norm_eps", 1e-5},           {"vocab_size", 5},
             {"max_position_embeddings", 512}, {"rope_theta", 50000.0},
             {"tie_word_embeddings", true}};
  hf["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}};
  const float natural = 0.1f * std::log(4.0f) + 1;
  EXPECT_NEAR(config({})->config.ropes[0].attention_factor, natural, 1e-6);
  EXPECT_NEAR(config({{"attn_factor", 0.5f}, {"yarn_ext_factor", 1.0f}})->config.ropes[0].attention_factor, natural / 2,
              1e-6);
  hf["rope_scaling"]["beta_fast"] = 8.0;
  hf["rope_scaling"]["beta_slow"] = 2.0;
  const auto wanted = ParseHfConfig(hf, "hf");
  ASSERT_TRUE(wanted.ok()) << wanted.status();
  EXPECT_EQ(config({{"yarn_beta_fast", 8.0f}, {"yarn_beta_slow", 2.0f}})->config.ropes[0].inv_freq,
            wanted->config.ropes[0].inv_freq);
  EXPECT_NE(config({})->config.ropes[0].inv_freq, wanted->config.ropes[0].inv_freq);
  EXPECT_THAT(config({{"yarn_ext_factor", 0.0f}}).status().ToString(),
              HasSubstr("yarn_ext_factor is 0: not supported"));
  EXPECT_THAT(config({{"attn_factor", -1.0f}}).status().ToString(), HasSubstr("attn_factor is -1"));
}

TEST(GgufConfig, Gemmas27BScalesByItsHiddenSize) {
  for (const uint32_t layers : {62u, 48u}) {
    GgufBuilder b;
    b.AddString("general.architecture", "gemma3").AddUint("gemma3.block_count", layers);
    b.AddUint("gemma3.embedding_length", 5376).AddUint("gemma3.feed_forward_length", 64);
    b.AddUint("gemma3.attention.head_count", 32).AddUint("gemma3.attention.head_count_kv", 16);
    b.AddUint("gemma3.attention.key_length", 128).AddUint("gemma3.context_length", 4096);
    b.AddUint("gemma3.attention.sliding_window", 1024);
    b.AddRaw("gemma3.attention.layer_norm_rms_epsilon", GgufValueType::kF32, GgufBuilder::Bytes(1e-6f));
    std::string slides(layers, '\1');
    slides[2] = '\0';
    b.AddRaw("gemma3.attention.sliding_window_pattern", GgufValueType::kArray,
             GgufBuilder::Bytes(static_cast<uint32_t>(GgufValueType::kBool)) + GgufBuilder::Bytes(uint64_t{layers}) +
                 slides);
    b.AddTensor("token_embd.weight", {5376, 2}, 0, 0);
    const std::vector<uint8_t> bytes = b.Build(5376 * 2 * 4);
    const auto read = ReadGgufConfig(**GgufFile::Parse(bytes, "G"));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_FLOAT_EQ(read->config.attention_scale, 1 / std::sqrt(layers == 62 ? 168.0f : 128.0f));
    EXPECT_EQ(read->config.layers[1].window, 1024);
    EXPECT_EQ(read->config.layers[2].window, 0) << "as the array of bools says";
    EXPECT_EQ(read->config.layers[5].window, 1024);
  }
}

TEST(GgufConfig, AWrongFieldIsNamed) {
  auto error = [](const GgufBuilder& b) {
    const std::vector<uint8_t> bytes = b.Build(128 * 5 * 4);
    return std::string(ReadGgufConfig(**GgufFile::Parse(bytes, "G")).status().message());
  };
  EXPECT_THAT(error(GgufBuilder()), HasSubstr("general.architecture"));
  EXPECT_THAT(error(LlamaFile("rwkv")), HasSubstr("architecture \"rwkv\" is not supported"));
  EXPECT_THAT(error(GgufBuilder().AddString("general.architecture", "\xff\x1b[2J" + std::string(9000, 'a'))),
              testing::AllOf(HasSubstr("architecture \"\\xff\\x1b[2Jaa"), HasSubstr("(9005 bytes) is not supported")));
  EXPECT_THAT(error(LlamaFile()), HasSubstr("token_embd.weight [vocab, hidden] is missing"));
  EXPECT_THAT(error(LlamaFile().AddUint("llama.expert_count", 8)), HasSubstr("a mixture of 8 experts"));
  EXPECT_THAT(error(LlamaFile().AddUint("split.count", 3)), HasSubstr("one of 3 parts of a split model"));
  GgufBuilder b = LlamaFile().AddUint("llama.attention.value_length", 32);
  EXPECT_THAT(error(b.AddTensor("token_embd.weight", {128, 5}, 0, 0)),
              HasSubstr("value_length 32 is not key_length 64"));
  GgufBuilder words = LlamaFile().AddStrings("tokenizer.ggml.tokens", {"a", "b", "c", "d", "e", "f"});
  EXPECT_THAT(error(words.AddTensor("token_embd.weight", {128, 5}, 0, 0)),
              HasSubstr("token_embd.weight has 5 rows, tokenizer.ggml.tokens 6"));
  GgufBuilder heads = LlamaFile("qwen3").AddUint("qwen3.attention.key_length", 1 << 20);
  EXPECT_THAT(error(heads.AddTensor("token_embd.weight", {128, 5}, 0, 0)), HasSubstr("head_dim is 1048576"));
}

TEST(WeightRules, NamesFollowTheFamily) {
  ModelConfig c = ParseHfConfig(Llama(), "C")->config;
  const WeightRule norm = RuleOf(c, Weight::kMlpNorm, 3);
  EXPECT_EQ(HfName(c, norm), "layers.3.post_attention_layernorm.weight");
  EXPECT_EQ(GgufName(norm), "blk.3.ffn_norm.weight");
  EXPECT_EQ(WeightRules(c).size(), 2u + 16 * 9);
  c.post_norms = true;
  EXPECT_EQ(HfName(c, norm), "layers.3.pre_feedforward_layernorm.weight");
  EXPECT_EQ(HfName(c, RuleOf(c, Weight::kPostAttentionNorm, 3)), "layers.3.post_attention_layernorm.weight");
}

}  // namespace
}  // namespace baton::engine
