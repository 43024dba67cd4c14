// Checkpoints in codes: each format gives the values that its own packing stands for (make_quantized.py), a model of
// them the logits of those floats; what cannot be served is named with its numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/model/files/quantized_tensors.h"
#include "tests/engine/model/paged_model.h"
#include "tests/engine/model/quantized_files.h"

namespace baton::engine {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string FromHex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i < hex.size(); i += 2) out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

// A layer of quantized.json in a file of its own.
class GoldenLayer {
 public:
  explicit GoldenLayer(const json& golden) : layer_(golden["layer"]), n_(golden["shape"][0]), k_(golden["shape"][1]) {
    how_ = ParseQuantization(golden, "G").value().value();
    for (const auto& [name, t] : golden["tensors"].items())
      tensors_.push_back({name, t["dtype"], t["shape"].get<std::vector<int64_t>>(), FromHex(t["bytes"])});
    const std::string bytes = FromHex(golden["values"]);
    values_.resize(bytes.size() / sizeof(float));
    std::memcpy(values_.data(), bytes.data(), bytes.size());
  }
  absl::StatusOr<LayerCodes> Open() {
    const std::string bytes = SafetensorsBytes(tensors_);
    bytes_.assign(bytes.begin(), bytes.end());
    file_ = SafetensorsFile::Parse(bytes_, "F").value();
    places_.clear();
    for (const SafeTensor& tensor : file_->tensors()) places_[tensor.name] = {file_.get(), &tensor};
    return OpenCodes(how_, layer_, n_, k_, [this](const std::string& name) {
      const auto it = places_.find(name);
      return it == places_.end() ? nullptr : &it->second;
    });
  }
  NamedTensor& Tensor(const std::string& suffix) {
    return *std::ranges::find_if(tensors_, [&](const NamedTensor& t) { return t.name.ends_with(suffix); });
  }
  std::string ErrorOf() { return std::string(Open().status().message()); }

  std::string layer_;
  int64_t n_, k_;
  Quantization how_;
  std::vector<NamedTensor> tensors_;
  std::vector<float> values_;  // [n, k]

 private:
  std::vector<uint8_t> bytes_;
  std::unique_ptr<SafetensorsFile> file_;
  std::map<std::string, TensorPlace> places_;
};

json Goldens() {
  std::ifstream in("tests/engine/model/goldens/quantized.json");
  return json::parse(in);
}

class Oracle : public testing::TestWithParam<const char*> {};

TEST_P(Oracle, ValuesAreThoseBeforePacking) {
  GoldenLayer golden(Goldens()[GetParam()]);
  const auto layer = golden.Open();
  ASSERT_TRUE(layer.ok()) << layer.status();
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>(0, golden.k_), {golden.k_ / 2 - 3, 9}}) {
    for (int64_t row = 0; row < golden.n_; ++row) {
      std::vector<float> got(static_cast<size_t>(count));
      layer->codes.ReadRow(row, first, count, got.data());
      const float* const want = golden.values_.data() + row * golden.k_ + first;
      ASSERT_EQ(got, std::vector<float>(want, want + count)) << "output " << row << " from input " << first;
    }
  }
}

// What a rank of two keeps of it: rows, or columns, whose groups may be cut.
TEST_P(Oracle, BoxesForADeviceAreThatPartOfTheValues) {
  GoldenLayer golden(Goldens()[GetParam()]);
  const LayerCodes layer = golden.Open().value();
  const int64_t n = golden.n_, k = golden.k_;
  for (const auto& [row, rows, column, columns] :
       {std::array<int64_t, 4>{0, n, 0, k}, {n / 2, n / 2, 0, k}, {0, n, 0, k / 2}, {3, n - 5, k / 2, k / 2}}) {
    const auto layout = layer.codes.LayoutOf(column, columns);
    ASSERT_TRUE(layout) << columns << " columns from " << column;
    const kernels::QuantizedWeight box = layer.codes.Take(row, rows, column, columns, *layout);
    ASSERT_EQ(box.in_features(), columns);
    const std::vector<uint16_t> got = kernels::DequantizedBf16(box);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        const float want = golden.values_[static_cast<size_t>((row + r) * k + column + c)];
        const float value = FloatOfBf16(got[static_cast<size_t>(r * columns + c)]);
        ASSERT_NEAR(value, want, std::abs(want) * 0x1p-7f) << "output " << row + r << " input " << column + c;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Oracle,
                         testing::Values("awq", "awq_narrow", "awq_whole", "gptq", "gptq_ordered", "gptq_8",
                                         "gptq_8_ordered", "gptq_whole", "gptq_2", "packed", "packed_asymmetric",
                                         "packed_8_channel", "packed_ordered", "float8_blocks", "float8_tensor",
                                         "float8_compressed_tensor", "float8_compressed_channel", "float8_channel_flat",
                                         "float8_compressed_blocks"),
                         [](const auto& info) { return std::string(info.param); });

const std::vector<int32_t> kQuantizedPrompt = {5, 300, 17, 88, 240, 3, 9, 120, 77, 31, 200, 11, 64, 2, 150, 19, 41, 6};

absl::StatusOr<LogitRows> Logits(const std::string& path, DType type) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<PagedModel> model,
                         PagedModel::Load({.path = path}, {.dtype = type, .emulate_bf16 = type == DType::kBF16}));
  return model->Prefill(kQuantizedPrompt, PagedModel::kMaxTokens);
}

class QuantizedHf : public testing::TestWithParam<CodesCase> {};

TEST_P(QuantizedHf, GivesTheLogitsOfTheFloatsThatItsCodesStandFor) {
  const QuantizedModel model(GetParam());
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const auto codes = Logits(model.codes(), type), floats = Logits(model.floats(), type);
    if (absl::IsFailedPrecondition(floats.status())) continue;  // no bf16 on this CPU
    ASSERT_TRUE(codes.ok() && floats.ok()) << codes.status() << floats.status();
    EXPECT_EQ(*codes, *floats) << DTypeName(type);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizedHf,
                         testing::Values(kAwqCase, kGptqCase, kOrderedCase, kGptq8Case, kOrdered8Case, kPackedCase,
                                         kFloat8Case, kFloat8TensorCase),
                         [](const auto& info) { return std::string(info.param.name); });

// Near the logits of what the codes stand for, and not those: e4m3 has three bits of mantissa. What the layers do is
// ops_rounded_linear_test's.
class RoundedHf : public testing::TestWithParam<CodesCase> {};
TEST_P(RoundedHf, GivesTheLogitsOfInputsInFloat8) {
  const QuantizedModel model(GetParam());
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const auto codes = Logits(model.codes(), type), floats = Logits(model.floats(), type);
    if (absl::IsFailedPrecondition(floats.status())) continue;  // no bf16 on this CPU
    ASSERT_TRUE(codes.ok() && floats.ok()) << codes.status() << floats.status();
    const bool cut = GetParam().inputs == std::string("static");  // kInputScale leaves no input beyond ±3.5
    EXPECT_GT(Distance(*codes, *floats), cut ? 0.3 : 0.01) << DTypeName(type);
    EXPECT_LT(Distance(*codes, *floats), cut ? 2 : 0.3) << DTypeName(type);
  }
}
INSTANTIATE_TEST_SUITE_P(Formats, RoundedHf, testing::Values(kRoundedCase, kRoundedTensorCase, kRoundedFixedCase),
                         [](const auto& info) { return std::string(info.param.name); });

// What multiplies the same x shares one scale of it, the largest.
TEST(RoundedInputs, OfLayersThatArePackedTogetherHaveTheLargestScale) {
  const auto scaled = [](std::initializer_list<std::string> layers, float scale) {
    return [=, names = std::vector<std::string>(layers)](std::vector<NamedTensor>& tensors) {
      for (NamedTensor& tensor : tensors)
        for (const std::string& name : names)
          if (tensor.name.ends_with(name + "_proj.input_scale")) tensor.bytes = GgufBuilder::Bytes(scale);
    };
  };
  const auto logits = [](const QuantizedModel& model) { return Logits(model.codes(), DType::kF32).value(); };
  const LogitRows want = logits(QuantizedModel(kRoundedFixedCase));
  EXPECT_EQ(logits(QuantizedModel(kRoundedFixedCase, scaled({"q", "v", "up"}, kInputScale / 4))), want);
  EXPECT_NE(logits(QuantizedModel(kRoundedFixedCase, scaled({"q", "k", "v"}, kInputScale / 4))), want);
}

TEST(RoundedInputs, WithoutAScaleThatCanBeOneAreNamed) {
  const auto error = [](const std::function<void(NamedTensor&)>& change) {
    const QuantizedModel model(kRoundedFixedCase, [&](std::vector<NamedTensor>& tensors) {
      change(*std::ranges::find_if(
          tensors, [](const NamedTensor& t) { return t.name == "model.layers.1.mlp.up_proj.input_scale"; }));
    });
    return std::string(Logits(model.codes(), DType::kF32).status().message());
  };
  EXPECT_THAT(error([](NamedTensor& t) { t.name += "_elsewhere"; }),
              HasSubstr("tensor model.layers.1.mlp.up_proj.input_scale is missing"));
  EXPECT_THAT(error([](NamedTensor& t) { t.bytes = GgufBuilder::Bytes(0.0f); }),
              HasSubstr("up_proj.input_scale is 0: the scale of inputs is a number above 0"));
  EXPECT_THAT(error([](NamedTensor& t) { t.bytes = GgufBuilder::Bytes(NAN); }), HasSubstr("input_scale is nan"));
  EXPECT_THAT(error([](NamedTensor& t) {
                t.shape = {2};
                t.bytes += t.bytes;
              }),
              HasSubstr("up_proj.input_scale has shape [2]"));
}

TEST(QuantizedFiles, WhatDoesNotFitIsNamedWithItsNumbers) {
  const json goldens = Goldens();
  GoldenLayer groups(goldens["awq"]);
  groups.how_.group = 48;
  EXPECT_THAT(groups.ErrorOf(), HasSubstr("groups of 48 (group_size) do not divide its 128 inputs"));
  GoldenLayer missing(goldens["gptq"]);
  missing.Tensor(".scales").name = "elsewhere";
  EXPECT_THAT(missing.ErrorOf(), HasSubstr("tensor model.layers.0.mlp.up_proj.scales is missing"));
  GoldenLayer shape(goldens["gptq"]);
  shape.k_ = 192;
  EXPECT_THAT(shape.ErrorOf(), HasSubstr("up_proj.qweight has shape [16, 16], a weight of 16 × 192 in 4 bits and "
                                         "groups of 64 asks for [24, 16]"));
  GoldenLayer type(goldens["packed"]);
  type.Tensor(".weight_scale").type = "I16";
  EXPECT_THAT(type.ErrorOf(), HasSubstr("weight_scale has type I16, not F16, BF16 or F32"));
  for (const char* ordered : {"gptq_ordered", "packed_ordered"}) {
    GoldenLayer order(goldens[ordered]);
    order.Tensor("g_idx").bytes[5 * 4] = 4;
    EXPECT_THAT(order.ErrorOf(), HasSubstr("g_idx: input 5 is of group 4 of 4"));
    order.Tensor("g_idx").name = "elsewhere";
    EXPECT_THAT(order.ErrorOf(), HasSubstr("g_idx is missing, the config says that inputs are ordered"));
  }
  GoldenLayer words(goldens["awq"]);
  words.n_ = 12;
  EXPECT_THAT(words.ErrorOf(), HasSubstr("12 outputs are not whole words of 8 codes of 4 bits"));
}

TEST(QuantizedFiles, Float8ThatDoesNotFitIsNamedWithItsNumbers) {
  const json goldens = Goldens();
  GoldenLayer blocks(goldens["float8_blocks"]);
  blocks.how_.outputs = 4;
  EXPECT_THAT(blocks.ErrorOf(), HasSubstr("up_proj.weight_scale_inv has shape [3, 2], a weight of 20 × 128 in 8 bits "
                                          "and groups of 64 asks for [5, 2]"));
  blocks.how_.group = 48;
  EXPECT_THAT(blocks.ErrorOf(), HasSubstr("groups of 48 (group_size) do not divide its 128 inputs"));
  GoldenLayer missing(goldens["float8_tensor"]);
  missing.Tensor(".weight_scale").name = "elsewhere";
  EXPECT_THAT(missing.ErrorOf(), HasSubstr("tensor model.layers.0.mlp.up_proj.weight_scale is missing"));
  GoldenLayer type(goldens["float8_tensor"]);
  type.Tensor(".weight_scale").type = "I32";
  EXPECT_THAT(type.ErrorOf(), HasSubstr("weight_scale has type I32, not F16, BF16 or F32"));
}

std::string ConfigError(const json& quantization) {
  const auto read = ParseQuantization({{"quantization_config", quantization}}, "C");
  return read.ok() ? "ok" : std::string(read.status().message());
}

TEST(QuantizationConfig, WhatCannotBeServedIsRefusedByName) {
  const json awq = QuantizationOf(kAwqCase), gptq = QuantizationOf(kGptqCase), packed = QuantizationOf(kPackedCase);
  const auto with = [](json base, const json& more) {
    base.merge_patch(more);
    return ConfigError(base);
  };
  EXPECT_EQ(ConfigError(awq), "ok");
  EXPECT_EQ(ConfigError(packed), "ok");
  EXPECT_EQ(with(gptq, {{"group_size", -1}, {"dynamic", {{"-:.*lm_head", json::object()}}}}), "ok");
  EXPECT_THAT(ConfigError({{"quant_method", "bitsandbytes"}}),
              HasSubstr("quant_method \"bitsandbytes\" is not supported"));
  EXPECT_THAT(with(awq, {{"bits", 8}}), HasSubstr("awq of 8 bits is not supported (4 are)"));
  EXPECT_THAT(with(gptq, {{"bits", 3}}), HasSubstr("gptq of 3 bits is not supported (4, 8 are)"));
  EXPECT_THAT(with(awq, {{"version", "gemv"}}), HasSubstr("awq of version \"gemv\" is not supported"));
  EXPECT_THAT(with(awq, {{"zero_point", false}}), HasSubstr("without zero points"));
  EXPECT_THAT(with(gptq, {{"checkpoint_format", "marlin"}}), HasSubstr("checkpoint_format \"marlin\""));
  EXPECT_THAT(with(gptq, {{"group_size", 0}}), HasSubstr("group_size is 0"));
  EXPECT_THAT(with(gptq, {{"group_size", nullptr}}), HasSubstr("group_size"));
  EXPECT_THAT(with(gptq, {{"dynamic", {{"+:.*down.*", {{"bits", 8}}}}}}), HasSubstr("dynamic \"+:.*down.*\""));
  const json fp8 = QuantizationOf(kRoundedCase);
  EXPECT_EQ(ConfigError(fp8), "ok");
  EXPECT_EQ(with(fp8, {{"weight_block_size", nullptr}, {"activation_scheme", "static"}}), "ok");
  EXPECT_THAT(with(fp8, {{"fmt", "e5m2"}}), HasSubstr("fp8 of fmt \"e5m2\" is not supported (e4m3 is)"));
  EXPECT_THAT(with(fp8, {{"activation_scheme", "none"}}), HasSubstr("activation_scheme \"none\""));
  EXPECT_THAT(with(fp8, {{"activation_scheme", "static"}}),
              HasSubstr("fp8 in blocks (weight_block_size) with activation_scheme \"static\" is not supported"));
  EXPECT_THAT(with(fp8, {{"weight_block_size", {128}}}), HasSubstr("weight_block_size is not two positive numbers"));
  EXPECT_THAT(with(fp8, {{"weight_block_size", {0, 128}}}), HasSubstr("not two positive numbers"));
  json float8 = Goldens()["float8_compressed_blocks"]["quantization_config"];
  const auto weights = [&](const json& more) {
    return with(float8, {{"config_groups", {{"group_0", {{"weights", more}}}}}});
  };
  EXPECT_EQ(ConfigError(float8), "ok");
  EXPECT_THAT(weights({{"num_bits", 4}}), HasSubstr("float-quantized of 4 bits is not supported (8 are)"));
  EXPECT_THAT(weights({{"type", "int"}}), HasSubstr("float-quantized of type \"int\""));
  EXPECT_THAT(weights({{"strategy", "group"}}),
              HasSubstr("strategy \"group\" is not supported (tensor, channel, block"));
  EXPECT_THAT(weights({{"block_structure", nullptr}}), HasSubstr("block_structure is not two positive numbers"));
  EXPECT_THAT(with(float8, {{"config_groups", {{"group_0", {{"input_activations", {{"type", "int"}}}}}}}}),
              HasSubstr("input_activations: compressed-tensors float-quantized of type \"int\""));
  const auto inputs = [&](const json& more) {
    return with(float8, {{"config_groups", {{"group_0", {{"input_activations", more}}}}}});
  };
  EXPECT_EQ(inputs({{"strategy", "group"}, {"group_size", 64}}), "ok");
  EXPECT_EQ(inputs({{"strategy", "tensor"}}), "ok");
  EXPECT_THAT(inputs({{"strategy", "group"}, {"group_size", 128}}),
              HasSubstr("with inputs in groups of 128 (group_size) and weights in groups of 64 is not supported"));
  EXPECT_THAT(
      inputs({{"strategy", "block"}}),
      HasSubstr("with dynamic inputs of strategy \"block\" and weights in blocks is not supported (token, tensor, "
                "group are)"));
  EXPECT_THAT(inputs({{"dynamic", false}, {"strategy", "tensor"}}),
              HasSubstr("with static inputs of strategy \"tensor\" and weights in blocks is not supported"));
  EXPECT_THAT(inputs({{"symmetric", false}}), HasSubstr("with symmetric false is not supported"));
  EXPECT_THAT(inputs({{"dynamic", "local"}}), HasSubstr("dynamic"));
  const auto kv = [&](const json& more) {
    json scheme = {{"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}, {"dynamic", false}};
    scheme.merge_patch(more);
    return with(float8, {{"kv_cache_scheme", scheme}});
  };
  EXPECT_EQ(kv(json::object()), "ok");
  EXPECT_THAT(kv({{"num_bits", 4}}), HasSubstr("compressed-tensors with KV of 4 bits is not supported (8 are)"));
  EXPECT_THAT(kv({{"type", "int"}}), HasSubstr("compressed-tensors with KV of type \"int\" is not supported"));
  EXPECT_THAT(kv({{"strategy", "head"}}), HasSubstr("KV of strategy \"head\" is not supported (tensor is)"));
  EXPECT_THAT(with(packed, {{"format", "marlin-24"}}), HasSubstr("format \"marlin-24\" is not supported"));
  EXPECT_THAT(with(packed, {{"config_groups", {{"group_1", json::object()}}}}), HasSubstr("2 config_groups"));
  EXPECT_THAT(with(packed, {{"config_groups", {{"group_0", {{"weights", {{"strategy", "tensor"}}}}}}}}),
              HasSubstr("strategy \"tensor\""));
}

absl::Status LoadError(const std::string& path) { return Logits(path, DType::kF32).status(); }

TEST(QuantizedModels, OfABiasThatTheModelHasNotAreRefusedUnlessItIsZero) {
  const auto bias = [](float value) {
    return [value](std::vector<NamedTensor>& tensors) {
      std::string bytes(256 * 4, '\0');
      std::memcpy(bytes.data() + 40, &value, 4);
      tensors.push_back({"model.layers.1.self_attn.o_proj.bias", "F32", {256}, bytes});
    };
  };
  EXPECT_TRUE(LoadError(QuantizedModel(kGptqCase, bias(0.0f)).codes()).ok());
  EXPECT_THAT(LoadError(QuantizedModel(kGptqCase, bias(0.5f)).codes()).ToString(),
              HasSubstr("o_proj.bias is not 0, the model has no bias there"));
}

TEST(QuantizedModels, InFloat8WithoutTheirConfigAreRefused) {
  const QuantizedModel model(kFloat8Case);
  json config = json::parse(std::ifstream(model.codes() + "/config.json"));
  config.erase("quantization_config");
  std::ofstream(model.codes() + "/config.json") << config.dump();
  EXPECT_THAT(LoadError(model.codes()).ToString(), HasSubstr("q_proj.weight has type F8_E4M3 (F32, F16, BF16 are "
                                                             "supported; of float8 under a quantization_config)"));
}

TEST(QuantizedModels, WithoutTheirConfigAreToldSoAndAnOlderFileOfItIsRead) {
  const QuantizedModel model(kGptqCase);
  json config = json::parse(std::ifstream(model.codes() + "/config.json"));
  json older = config["quantization_config"];
  older.erase("quant_method");
  config.erase("quantization_config");
  std::ofstream(model.codes() + "/config.json") << config.dump();
  EXPECT_THAT(LoadError(model.codes()).ToString(),
              HasSubstr("q_proj.weight is missing, its codes are there: the config has no quantization_config"));
  std::ofstream(model.codes() + "/quantize_config.json") << older.dump();
  EXPECT_TRUE(LoadError(model.codes()).ok()) << LoadError(model.codes());
  ModelSource dummy{.path = model.codes(), .dummy_weights = true};
  EXPECT_THAT(PagedModel::Load(dummy, {.dtype = DType::kF32}).status().ToString(),
              HasSubstr("\"gptq\" asks for codes"));
}

}  // namespace
}  // namespace baton::engine
