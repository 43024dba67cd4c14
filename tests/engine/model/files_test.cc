// Weights through files: every way to store the same weights gives the logits of the dummy ones; bad files are refused
// with names and numbers. Build something valid, break one thing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/model/files/gguf_dequant.h"
#include "engine/model/weight_parts.h"
#include "tests/engine/model/model_files.h"
#include "tests/engine/model/paged_model.h"

namespace baton::engine {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::vector<int32_t> kFilesPrompt = {5, 300, 17, 88, 240, 3, 9, 120, 77, 31, 200, 11, 64, 2, 150, 19, 41, 6};

std::string GoldenPath(const std::string& family) { return "tests/engine/model/goldens/" + family; }

json GoldenJson(const std::string& family) {
  std::ifstream in(GoldenPath(family) + "/config.json");
  return json::parse(in);
}
ModelConfig GoldenConfig(const std::string& family) { return ReadHfConfig(GoldenPath(family))->config; }

absl::StatusOr<std::vector<float>> LastLogits(const ModelSource& source) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<PagedModel> model, PagedModel::Load(source, {.dtype = DType::kF32}));
  BATON_ASSIGN_OR_RETURN(LogitRows rows, model->Prefill(kFilesPrompt, PagedModel::kMaxTokens));
  return rows.back();
}
std::vector<float> DummyLogits(const std::string& family) {
  return LastLogits({.path = GoldenPath(family), .dummy_weights = true, .dummy_seed = 7}).value();
}
double MaxError(const std::vector<float>& a, const std::vector<float>& b) {
  double out = 0;
  for (size_t i = 0; i < a.size(); ++i) out = std::max<double>(out, std::fabs(a[i] - b[i]));
  return out;
}

// A directory with a family's config and the tensors, changed by `change`.
struct HfFiles {
  TempDirectory directory;
  explicit HfFiles(const std::string& family, const std::string& type = "BF16",
                   const std::function<void(std::vector<NamedTensor>&)>& change = nullptr,
                   const std::string& body = "model.", const std::string& head = "") {
    std::vector<NamedTensor> tensors = GoldenTensors(GoldenConfig(family), type, body, head);
    if (change) change(tensors);
    directory.Write("config.json", GoldenJson(family).dump());
    directory.Write("model.safetensors", SafetensorsBytes(tensors));
  }
  absl::Status Load() const { return LastLogits({.path = directory.path()}).status(); }
};

class HfFamily : public testing::TestWithParam<const char*> {};

TEST_P(HfFamily, SafetensorsGiveTheLogitsOfTheSameWeights) {
  const std::vector<float> wanted = DummyLogits(GetParam());
  const HfFiles bf16(GetParam()), f32(GetParam(), "F32"), f16(GetParam(), "F16");
  EXPECT_EQ(LastLogits({.path = bf16.directory.path()}).value(), wanted);
  EXPECT_EQ(LastLogits({.path = f32.directory.path()}).value(), wanted);
  EXPECT_LT(MaxError(LastLogits({.path = f16.directory.path()}).value(), wanted), 1e-3);  // tiny values are lost in f16
}

TEST_P(HfFamily, ShardsGiveTheSame) {
  const TempDirectory directory;
  directory.Write("config.json", GoldenJson(GetParam()).dump());
  WriteSharded(directory, GoldenTensors(GoldenConfig(GetParam()), "BF16"), 7);
  EXPECT_EQ(LastLogits({.path = directory.path()}).value(), DummyLogits(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(All, HfFamily,
                         testing::Values("llama2", "llama3", "qwen2", "qwen3", "mistral", "smollm3", "gemma2",
                                         "gemma3"),
                         [](const auto& info) { return std::string(info.param); });

class GgufFamily : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(GgufFamily, GgufGivesTheLogitsOfTheSameWeights) {
  const auto [family, name] = GetParam();
  const std::string architecture = name;
  json hf = GoldenJson(family);
  if (architecture.starts_with("gemma"))
    hf["query_pre_attn_scalar"] = hf["head_dim"];                 // the format has no field for it
  if (architecture == "qwen2") hf["use_sliding_window"] = false;  // nor for that
  const ModelConfig config = ParseHfConfig(hf, "C")->config;
  const TempDirectory directory, plain;
  directory.Write("m.gguf", GgufBytes(config, architecture, hf));
  plain.Write("config.json", hf.dump());
  const auto wanted = LastLogits({.path = plain.path(), .dummy_weights = true, .dummy_seed = 7});
  const auto got = LastLogits({.path = directory.path() + "/m.gguf"});
  ASSERT_TRUE(got.ok() && wanted.ok()) << got.status() << wanted.status();
  EXPECT_LT(MaxError(*got, *wanted), 2e-4);  // (w - 1) + 1 rounds, and rope factors are f32
}

INSTANTIATE_TEST_SUITE_P(All, GgufFamily,
                         testing::Values(std::pair("llama2", "llama"), std::pair("llama3", "llama"),
                                         std::pair("qwen2", "qwen2"), std::pair("qwen3", "qwen3"),
                                         std::pair("smollm3", "smollm3"), std::pair("gemma2", "gemma2"),
                                         std::pair("gemma3", "gemma3")),
                         [](const auto& info) { return std::string(info.param.first); });

TEST(HfFiles, TextTowersOfMultimodalModelsAreFound) {
  for (const auto& [body, head] :
       {std::pair("model.language_model.", ""), std::pair("language_model.model.", "language_model.")}) {
    auto vision = [](std::vector<NamedTensor>& t) {
      t.push_back({"vision_tower.x.weight", "F32", {1}, std::string(4, '\0')});
    };
    const HfFiles files("gemma3", "BF16", vision, body, head);
    json config = {{"model_type", "gemma3"}, {"text_config", GoldenJson("gemma3")}};
    files.directory.Write("config.json", config.dump());
    EXPECT_EQ(LastLogits({.path = files.directory.path()}).value(), DummyLogits("gemma3")) << body;
  }
}

TEST(HfFiles, MissingTensorsAreCountedAndNamed) {
  auto drop = [](std::vector<NamedTensor>& t) { t.erase(t.begin() + 3, t.begin() + 8); };
  const absl::Status status = HfFiles("llama2", "BF16", drop).Load();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(status.ToString(),
              HasSubstr("5 of 42 tensors cannot be used: tensor model.layers.0.self_attn.k_proj.weight is missing; "));
  auto drop_embedding = [](std::vector<NamedTensor>& t) { t.erase(t.begin()); };
  EXPECT_THAT(HfFiles("llama2", "BF16", drop_embedding).Load().ToString(),
              HasSubstr("none of its 41 tensors is model.embed_tokens.weight"));
}

TEST(HfFiles, WrongShapesAndTypesAreShown) {
  auto shape = [](std::vector<NamedTensor>& t) { t[2].shape = {192, 256}; };
  EXPECT_THAT(HfFiles("llama2", "BF16", shape).Load().ToString(),
              HasSubstr("model.layers.0.self_attn.q_proj.weight has shape [192, 256], the config asks for [256, 192]"));
  auto type = [](std::vector<NamedTensor>& t) { t[2].type = "I16"; };
  EXPECT_THAT(HfFiles("llama2", "BF16", type).Load().ToString(),
              HasSubstr("has type I16 (F32, F16, BF16 are supported)"));
}

TEST(HfFiles, IndexesThatLieAreRefused) {
  const TempDirectory directory;
  directory.Write("config.json", GoldenJson("llama2").dump());
  const std::vector<NamedTensor> tensors = GoldenTensors(GoldenConfig("llama2"), "BF16");
  WriteSharded(directory, tensors, 20);
  auto error = [&](const std::string& index) {
    directory.Write("model.safetensors.index.json", index);
    return LastLogits({.path = directory.path()}).status().ToString();
  };
  EXPECT_THAT(error(R"({"weight_map": {"a": "../secret.safetensors"}})"),
              HasSubstr("\"a\" is not in a file of this directory"));
  EXPECT_THAT(error(R"({"weight_map": {"a": "gone.safetensors"}})"), HasSubstr("gone.safetensors: cannot open"));
  EXPECT_THAT(error(R"({"weight_map": {"nobody": "model-0.safetensors"}})"),
              HasSubstr("\"nobody\" should be in model-0.safetensors and is not"));
  EXPECT_THAT(error(R"({"weight_map": []})"), HasSubstr("weight_map is [], not an object"));
  EXPECT_THAT(error(R"({"weight_map": {}})"), HasSubstr("weight_map is missing"));
  directory.Write("model-1.safetensors", SafetensorsBytes(tensors));
  EXPECT_THAT(
      error(json{{"weight_map", {{tensors[0].name, "model-0.safetensors"}, {tensors[1].name, "model-1.safetensors"}}}}
                .dump()),
      HasSubstr("\"model.embed_tokens.weight\" is in "));
}

TEST(HfFiles, ADirectoryWithoutWeightsSaysSo) {
  const TempDirectory directory;
  directory.Write("config.json", GoldenJson("llama2").dump());
  EXPECT_TRUE(absl::IsNotFound(LastLogits({.path = directory.path()}).status()));
  EXPECT_TRUE(absl::IsNotFound(LastLogits({.path = directory.path() + "/nowhere"}).status()));
}

TEST(GgufFiles, MissingTensorsWrongShapesAndTypesAreRefused) {
  const json hf = GoldenJson("llama2");
  ModelConfig config = GoldenConfig("llama2");
  const TempDirectory directory;
  auto error = [&](const std::string& bytes) {
    directory.Write("m.gguf", bytes);
    return LastLogits({.path = directory.path() + "/m.gguf"}).status().ToString();
  };
  const std::string good = GgufBytes(config, "llama", hf);
  config.num_layers = 2;
  std::string fewer = GgufBytes(config, "llama", hf);
  const std::string key = "llama.block_count";
  fewer[fewer.find(key) + key.size() + 4] = 3;  // after the value's type
  EXPECT_THAT(error(fewer), HasSubstr("13 of 42 tensors cannot be used: tensor blk.2.attn_norm.weight is missing"));
  std::string wide = good;
  const std::string inner = "llama.feed_forward_length";
  wide[wide.find(inner) + inner.size() + 4] = 0x50;  // 336 instead of 320
  EXPECT_THAT(error(wide), HasSubstr("blk.0.ffn_gate.weight has shape [320, 192], the metadata asks for [336, 192]"));
  EXPECT_THAT(error(good.substr(0, good.size() - 1)), HasSubstr("m.gguf"));
  EXPECT_THAT(error("GGUF"), HasSubstr("m.gguf"));
}

TEST(GgufFiles, MatricesMayBeF16AndABiasBesideTheValuesOnly) {
  json hf = GoldenJson("llama2");
  hf["attention_out_bias"] = false;
  const ModelConfig config = ParseHfConfig(hf, "C")->config;
  const TempDirectory directory, plain;
  directory.Write("m.gguf", GgufBytes(config, "llama", hf, GgmlType::kF16));
  plain.Write("config.json", hf.dump());
  const auto wanted = LastLogits({.path = plain.path(), .dummy_weights = true, .dummy_seed = 7});
  const auto got = LastLogits({.path = directory.path() + "/m.gguf"});
  ASSERT_TRUE(got.ok() && wanted.ok()) << got.status() << wanted.status();
  EXPECT_LT(MaxError(*got, *wanted), 1e-3);
}

std::vector<double> Logprobs(const std::vector<float>& logits) {
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x));
  std::vector<double> out;
  for (float x : logits) out.push_back(x - std::log(sum));
  return out;
}

// The same weights as quantized blocks and as the floats that the blocks stand for, whole blocks in every row.
class QuantizedGguf : public testing::TestWithParam<GgmlType> {
 protected:
  QuantizedGguf() {
    json hf = GoldenJson("llama2");
    hf["hidden_size"] = 256;
    hf["intermediate_size"] = 512;
    hf["num_hidden_layers"] = 2;
    hf["head_dim"] = 256 / hf["num_attention_heads"].get<int>();
    const ModelConfig config = ParseHfConfig(hf, "C")->config;
    const auto blocks = [](const WeightRule& rule) {
      const uint32_t seed = static_cast<uint32_t>(1000 * rule.layer + static_cast<int>(rule.weight));
      return RandomBlocks(GetParam(), rule.rows(), rule.columns(), seed);
    };
    const auto floats = [&blocks](const WeightRule& rule) {
      const std::string stored = blocks(rule);
      std::vector<float> values(static_cast<size_t>(rule.elements()));
      Dequantize(GetParam(), reinterpret_cast<const uint8_t*>(stored.data()), rule.elements(), values.data());
      return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    };
    directory_.Write("blocks.gguf", GgufBytes(config, "llama", hf, GetParam(), blocks));
    directory_.Write("floats.gguf", GgufBytes(config, "llama", hf, GgmlType::kF32, floats));
  }
  absl::StatusOr<std::vector<float>> Logits(const std::string& name, kernels::CpuOpsConfig ops) const {
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<PagedModel> model,
                           PagedModel::Load({.path = directory_.path() + "/" + name}, ops));
    BATON_ASSIGN_OR_RETURN(LogitRows rows, model->Prefill(kFilesPrompt, PagedModel::kMaxTokens));
    return rows.back();
  }
  TempDirectory directory_;
};

TEST_P(QuantizedGguf, IsExactInF32) {
  const auto got = Logits("blocks.gguf", {.dtype = DType::kF32}),
             wanted = Logits("floats.gguf", {.dtype = DType::kF32});
  ASSERT_TRUE(got.ok() && wanted.ok()) << got.status() << wanted.status();
  const std::vector<double> a = Logprobs(*got), b = Logprobs(*wanted);
  ASSERT_GT(*std::max_element(b.begin(), b.end()) - *std::min_element(b.begin(), b.end()), 1.0) << "a flat model";
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-4) << "token " << i;
}

TEST_P(QuantizedGguf, IsRoundedOnceInBf16) {
  const kernels::CpuOpsConfig bf16{.dtype = DType::kBF16, .emulate_bf16 = true};
  const auto got = Logits("blocks.gguf", bf16), wanted = Logits("floats.gguf", bf16);
  if (absl::IsFailedPrecondition(got.status())) GTEST_SKIP() << got.status();
  ASSERT_TRUE(got.ok() && wanted.ok()) << got.status() << wanted.status();
  EXPECT_EQ(*got, *wanted);
}

TEST_P(QuantizedGguf, TakesFourBytesAWeightInF32AndTwoInBf16) {
  const auto bytes = [this](const char* name, DType compute) {
    kernels::OpsTraits traits = kernels::MakeCpuOps({.dtype = DType::kF32}).value()->traits();
    traits.compute = compute;
    return InspectModel({.path = directory_.path() + "/" + name}, traits, PagedModel::kMaxTokens).value().weight_bytes;
  };
  EXPECT_EQ(bytes("blocks.gguf", DType::kF32), bytes("floats.gguf", DType::kF32));
  EXPECT_EQ(bytes("blocks.gguf", DType::kBF16), bytes("floats.gguf", DType::kBF16));
  EXPECT_GT(bytes("blocks.gguf", DType::kF32), bytes("blocks.gguf", DType::kBF16) * 19 / 10);
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedGguf,
                         testing::Values(GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ5_0,
                                         GgmlType::kQ5_1, GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K),
                         [](const auto& info) { return std::string(GgmlBlockOf(info.param).name); });

TEST(GgufFiles, AQuantizedVectorIsRefused) {
  std::string bytes = GgufBytes(GoldenConfig("llama2"), "llama", GoldenJson("llama2"));
  const std::string name = "blk.0.attn_norm.weight";
  bytes[bytes.find(name) + name.size() + 4 + 8] = static_cast<char>(GgmlType::kQ8_0);  // after its rank and dimension
  const TempDirectory directory;
  directory.Write("m.gguf", bytes);
  EXPECT_THAT(LastLogits({.path = directory.path() + "/m.gguf"}).status().ToString(),
              HasSubstr("vector blk.0.attn_norm.weight is quantized (Q8_0)"));
}

// What a tensor parallel rank reads of a file is its box of the whole tensor.
TEST(Parts, OfFilesAreThoseOfTheWholeTensors) {
  const ModelConfig config = GoldenConfig("llama2");
  const TempDirectory directory;
  directory.Write("config.json", GoldenJson("llama2").dump());
  WriteSharded(directory, GoldenTensors(config, "BF16"), 7);
  directory.Write("m.gguf", GgufBytes(config, "llama", GoldenJson("llama2")));
  const std::unique_ptr<WeightSource> dummy = MakeDummyWeights(config, 7);
  const std::unique_ptr<WeightSource> hf = OpenHfWeights(directory.path(), config).value();
  const std::unique_ptr<WeightSource> gguf =
      OpenGgufWeights(GgufFile::Open(directory.path() + "/m.gguf").value(), config).value();
  for (const int rank : {0, 1}) {
    for (const WeightPart& part : PartsOf(config, {.tensor_rank = rank, .tensor_size = 2})) {
      std::vector<float> wanted(static_cast<size_t>(part.elements())), got(wanted.size());
      ASSERT_TRUE(dummy->Read(part, DType::kF32, wanted.data()).ok());
      for (const WeightSource* source : {hf.get(), gguf.get()}) {
        ASSERT_TRUE(source->Check(part.rule).ok());
        ASSERT_TRUE(source->Read(part, DType::kF32, got.data(), 2).ok());
        EXPECT_EQ(got, wanted) << HfName(config, part.rule) << " of rank " << rank
                               << (source == hf.get() ? "" : ", GGUF");
      }
    }
  }
}

TEST(LoadModel, AModelLargerThanMemoryIsRefusedWithBothNumbers) {
  ModelSource source{.path = GoldenPath("llama2"), .dummy_weights = true};
  source.memory_limit_bytes = 1'000'000;
  const absl::Status status = LastLogits(source).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(status.ToString(), HasSubstr("1000000 bytes (0.00 GiB) are available"));
  EXPECT_THAT(status.ToString(), HasSubstr(" needs "));
  const TempDirectory directory;
  json huge = GoldenJson("llama2");
  huge["hidden_size"] = 1 << 17, huge["intermediate_size"] = 1 << 20, huge["num_hidden_layers"] = 1024,
  huge["vocab_size"] = 1 << 22;
  directory.Write("config.json", huge.dump());
  EXPECT_TRUE(absl::IsResourceExhausted(LastLogits({.path = directory.path(), .dummy_weights = true}).status()));
}

TEST(LoadModel, ProgressRunsFromReadToPackedOnce) {
  auto ops = kernels::MakeCpuOps({});
  ASSERT_TRUE(ops.ok());
  std::vector<std::pair<std::string, double>> seen;
  auto report = [&](std::string_view phase, double fraction) { seen.emplace_back(phase, fraction); };
  ASSERT_TRUE(LoadModel({.path = GoldenPath("qwen2"), .dummy_weights = true}, **ops, 8, report).ok());
  EXPECT_EQ(seen.front(), std::pair(std::string("read"), 0.0));
  EXPECT_EQ(seen.back(), std::pair(std::string("pack"), 1.0));
  EXPECT_TRUE(
      std::is_sorted(seen.begin() + 2, seen.end(), [](const auto& a, const auto& b) { return a.second < b.second; }));
}

TEST(LoadModel, ALoadThatIsGivenUpIsNotPackedToTheEnd) {
  auto ops = kernels::MakeCpuOps({});
  ASSERT_TRUE(ops.ok());
  std::atomic<bool> given_up{false};
  double packed = 0;
  auto report = [&](std::string_view phase, double fraction) {
    if (phase != "pack") return;
    packed = fraction;
    given_up = true;
  };
  ModelSource source{.path = GoldenPath("qwen2"), .dummy_weights = true};
  source.given_up = &given_up;
  EXPECT_TRUE(absl::IsCancelled(LoadModel(source, **ops, 8, report).status()));
  EXPECT_LT(packed, 0.5);
}

TEST(LoadModel, DigestFollowsConfigWeightsAndSeed) {
  auto digest = [](const ModelSource& source) { return (*PagedModel::Load(source))->model().config().digest; };
  const ModelSource dummy{.path = GoldenPath("llama2"), .dummy_weights = true, .dummy_seed = 1};
  ModelSource other_seed = dummy;
  other_seed.dummy_seed = 2;
  EXPECT_EQ(digest(dummy), digest(dummy));
  EXPECT_EQ(digest(dummy).size(), 32u);
  EXPECT_NE(digest(dummy), digest(other_seed));
  EXPECT_NE(digest(dummy), digest({.path = GoldenPath("mistral"), .dummy_weights = true, .dummy_seed = 1}));
  const HfFiles files("llama2"), same("llama2");
  const HfFiles changed("llama2", "BF16", [](std::vector<NamedTensor>& t) { t[1].bytes[3] ^= 1; });
  EXPECT_EQ(digest({.path = files.directory.path()}), digest({.path = same.directory.path()}));
  EXPECT_NE(digest({.path = files.directory.path()}), digest({.path = changed.directory.path()}));
}

TEST(LoadModel, BlockSizeMustBeWholeUnits) {
  ModelSource source{.path = GoldenPath("llama2"), .dummy_weights = true};
  source.block_size = 24;
  EXPECT_THAT(PagedModel::Load(source).status().ToString(), HasSubstr("block size 24 is not a multiple of 16"));
}

}  // namespace
}  // namespace baton::engine
