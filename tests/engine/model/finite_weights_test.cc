// A weight that is an infinity or NaN, by itself or by its scale, is refused when the model is loaded, on a CPU as on a
// GPU: with the tensor, the place and the value. Build something valid, break one number.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "engine/model/files/finite.h"
#include "engine/model/weights.h"
#include "kernels/cpu/cpu_ops.h"
#include "tests/engine/model/quantized_files.h"
#include "tests/engine/model/random_steps.h"

namespace baton::engine {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

// What loading says: on a CPU in f32 and in bf16, and on a GPU.
std::vector<absl::Status> Loaded(const std::string& path) {
  const RandomLimits limits;
  ModelSource source = SourceWithin(path, limits);
  source.dummy_weights = false;
  std::vector<absl::Status> out;
  for (const DType type : {DType::kF32, DType::kBF16}) {
    auto ops = kernels::MakeCpuOps({.dtype = type, .emulate_bf16 = true});
    const absl::Status status = LoadModel(source, **ops, limits.rows, nullptr).status();
    if (type == DType::kBF16 && absl::IsFailedPrecondition(status)) continue;  // no bf16 on this CPU
    out.push_back(status);
  }
  auto ops = kernels::MakeCudaOps({});
  out.push_back(LoadModel(source, **ops, limits.rows, nullptr).status());
  return out;
}

void ExpectRefused(const std::string& path, const std::string& said) {
  for (const absl::Status& status : Loaded(path)) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << said << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(said));
  }
}
void ExpectLoaded(const std::string& path) {
  for (const absl::Status& status : Loaded(path)) EXPECT_TRUE(status.ok()) << path << ": " << status;
}

template <typename T>
void Put(NamedTensor& tensor, size_t element, T value) {
  ASSERT_LE((element + 1) * sizeof value, tensor.bytes.size());
  std::memcpy(tensor.bytes.data() + element * sizeof value, &value, sizeof value);
}

// A number of a file's own type.
void PutNumber(NamedTensor& tensor, size_t element, float value) {
  if (tensor.type == "F32") Put(tensor, element, value);
  if (tensor.type == "F16") Put(tensor, element, F16OfFloat(value));
  if (tensor.type == "BF16") Put(tensor, element, Bf16OfFloat(value));
}

std::function<void(std::vector<NamedTensor>&)> With(const std::string& name, size_t element, float value) {
  return [=](std::vector<NamedTensor>& tensors) {
    const auto at = std::ranges::find(tensors, name, &NamedTensor::name);
    ASSERT_NE(at, tensors.end()) << name;
    PutNumber(*at, element, value);
  };
}

struct ScaleCase {
  CodesCase how;
  const char* suffix;  // of the tensor that has the scales
  size_t element;
  const char* place;  // how it is said
};
void PrintTo(const ScaleCase& c, std::ostream* out) { *out << c.how.name; }

class ScalesOfCodes : public testing::TestWithParam<ScaleCase> {};

TEST_P(ScalesOfCodes, ThatAreNotFiniteAreNamed) {
  const auto& [how, suffix, element, place] = GetParam();
  const std::string name = StrCat("model.layers.1.mlp.up_proj.", suffix);
  const auto [value, text] = how.group == 64 ? std::pair(kNaN, "nan") : std::pair(-kInf, "-inf");
  const QuantizedModel model(how, With(name, element, value));
  ExpectRefused(model.codes(), StrCat("/model.safetensors: ", name, place, " is ", text,
                                      ", the scale of model.layers.1.mlp.up_proj["));
}

// A group of zeros has the scale 0 with some that write them, and the sign may be anybody's.
TEST_P(ScalesOfCodes, AreWhatTheyAreWhereTheyAreFinite) {
  const auto& [how, suffix, element, place] = GetParam();
  for (const float value : {0.0f, -0.25f})
    ExpectLoaded(QuantizedModel(how, With(StrCat("model.layers.1.mlp.up_proj.", suffix), element, value)).codes());
}

// up_proj is 384 × 256.
INSTANTIATE_TEST_SUITE_P(Formats, ScalesOfCodes,
                         testing::Values(ScaleCase{kAwqCase, "scales", 2 * 384 + 17, "[2, 17]"},
                                         ScaleCase{kGptqCase, "scales", 7 * 384 + 383, "[7, 383]"},
                                         ScaleCase{kOrderedCase, "scales", 3 * 384 + 5, "[3, 5]"},
                                         ScaleCase{kPackedCase, "weight_scale", 100 * 4 + 3, "[100, 3]"},
                                         ScaleCase{kFloat8Case, "weight_scale", 3 * 4 + 1, "[3, 1]"},
                                         ScaleCase{kFloat8TensorCase, "weight_scale", 0, "[0, 0]"},
                                         ScaleCase{kRoundedCase, "weight_scale_inv", 2 * 4 + 2, "[2, 2]"},
                                         ScaleCase{kBlocksCase, "weight_scale_inv", 2 * 2 + 1, "[2, 1]"},
                                         ScaleCase{kRoundedFixedCase, "weight_scale", 0, "[0, 0]"}),
                         [](const auto& info) { return std::string(info.param.how.name); });

TEST(Codes, OfFloat8ThatAreNoNumberAreNamed) {
  for (const CodesCase& how : {kFloat8Case, kRoundedTensorCase}) {
    const std::string name = "model.layers.0.self_attn.v_proj.weight";
    const QuantizedModel model(how, [&](std::vector<NamedTensor>& tensors) {
      Put(*std::ranges::find(tensors, name, &NamedTensor::name), 200 * 256 + 91, uint8_t{0xff});
    });
    ExpectRefused(model.codes(), StrCat(name, "[200, 91] is nan: "));
  }
}

// What a rank does not read it does not refuse.
TEST(Codes, AreTheRanksOwnToRefuse) {
  const QuantizedModel model(kAwqCase, With("model.layers.1.mlp.down_proj.scales", 5 * 256 + 17, kNaN));
  const ReadConfig read = ReadHfConfig(model.codes()).value();
  const auto source = OpenHfWeights(model.codes(), read.config, read.quantization).value();
  const auto loaded = [&](int rank) {
    const auto ops = kernels::MakeCudaOps({}).value();
    const LoadProgress progress = [](std::string_view, double) {};
    return LoadWeights(read.config, RankPlace::Of(rank, 2, 1, 2), *source, *ops, progress).status();
  };
  EXPECT_TRUE(loaded(0).ok()) << loaded(0);
  EXPECT_THAT(std::string(loaded(1).message()), HasSubstr("down_proj.scales[5, 17] is nan, the scale of "));
}

json SmallLlama() {
  std::ifstream in("tests/engine/model/goldens/llama2/config.json");
  json hf = json::parse(in);
  hf.update({{"hidden_size", 256}, {"intermediate_size", 512}, {"num_hidden_layers", 2}});
  hf.update({{"num_attention_heads", 4}, {"num_key_value_heads", 2}, {"head_dim", 64}});
  return hf;
}

class Blocks : public testing::TestWithParam<GgmlType> {
 protected:
  // A file whose blk.1.`weight` has a number of the last block of its third row overwritten at byte `at`.
  std::string Path(Weight weight, size_t at, float value) const {
    const json hf = SmallLlama();
    const GgmlBlock block = GgmlBlockOf(GetParam());
    const auto blocks = [&](const WeightRule& rule) {
      std::string out = RandomBlocks(GetParam(), rule.rows(), rule.columns(), static_cast<uint32_t>(rule.weight));
      if (rule.weight != weight || rule.layer != 1) return out;
      const auto row_blocks = static_cast<size_t>(rule.columns() / block.elements);
      const uint16_t bits = F16OfFloat(value);
      std::memcpy(out.data() + (2 * row_blocks + row_blocks - 1) * block.bytes + at, &bits, sizeof bits);
      return out;
    };
    directory_.Write("m.gguf", GgufBytes(ParseHfConfig(hf, "C")->config, "llama", hf, GetParam(), blocks));
    return directory_.path() + "/m.gguf";
  }
  std::string Said(const std::string& name, const std::string& what) const {
    const GgmlBlock block = GgmlBlockOf(GetParam());
    return StrCat("/m.gguf: ", name, "[2, ", 256 - block.elements, "…255] has the ", what);
  }
  TempDirectory directory_;
};

TEST_P(Blocks, WhoseScaleIsNotFiniteAreNamed) {
  const size_t at = GetParam() == GgmlType::kQ6_K ? 208 : 0;
  ExpectRefused(Path(Weight::kUp, at, kNaN), Said("blk.1.ffn_up.weight", "scale nan"));
  ExpectRefused(Path(Weight::kQuery, at, kInf), Said("blk.1.attn_q.weight", "scale inf"));  // rows lie in pairs
  ExpectLoaded(Path(Weight::kUp, at, 0.0f));
  ExpectLoaded(Path(Weight::kUp, at, -0.25f));
}

INSTANTIATE_TEST_SUITE_P(All, Blocks,
                         testing::Values(GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ5_0,
                                         GgmlType::kQ5_1, GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K),
                         [](const auto& info) { return std::string(GgmlBlockOf(info.param).name); });

class BlocksWithMinimum : public Blocks {};
TEST_P(BlocksWithMinimum, ThatIsNotFiniteAreNamed) {
  ExpectRefused(Path(Weight::kUp, 2, -kInf), Said("blk.1.ffn_up.weight", "minimum -inf"));
}
INSTANTIATE_TEST_SUITE_P(All, BlocksWithMinimum,
                         testing::Values(GgmlType::kQ4_1, GgmlType::kQ5_1, GgmlType::kQ4_K, GgmlType::kQ5_K),
                         [](const auto& info) { return std::string(GgmlBlockOf(info.param).name); });

TEST(Floats, ThatAreNotFiniteAreNamed) {
  std::ifstream in("tests/engine/model/goldens/qwen2/config.json");
  json hf = json::parse(in);
  hf.update({{"hidden_size", 256}, {"num_attention_heads", 4}, {"num_key_value_heads", 2}, {"head_dim", 64}});
  const ModelConfig config = ParseHfConfig(hf, "C")->config;
  const TempDirectory directory;
  directory.Write("config.json", hf.dump());
  const auto refused = [&](const std::string& type, const std::string& name, size_t element, float value,
                           const std::string& said) {
    std::vector<NamedTensor> tensors = GoldenTensors(config, type);
    With(name, element, value)(tensors);
    directory.Write("model.safetensors", SafetensorsBytes(tensors));
    ExpectRefused(directory.path(), StrCat("/model.safetensors: ", name, said, ": not a finite number in "));
  };
  for (const char* type : {"BF16", "F16", "F32"}) {
    refused(type, "model.layers.0.mlp.down_proj.weight", 3, kNaN, "[0, 3] is nan");
    refused(type, "model.layers.1.self_attn.k_proj.bias", 127, -kInf, "[127] is -inf");
    refused(type, "model.embed_tokens.weight", 300 * 256 + 9, kInf, "[300, 9] is inf");
  }
  refused("BF16", "model.norm.weight", 255, kNaN, "[255] is nan");
  refused("BF16", "model.layers.1.input_layernorm.weight", 0, kInf, "[0] is inf");
  // Beyond bf16, in which f32 is computed there.
  std::vector<NamedTensor> tensors = GoldenTensors(config, "F32");
  With("model.layers.0.mlp.down_proj.weight", 3, 3.4e38f)(tensors);
  directory.Write("model.safetensors", SafetensorsBytes(tensors));
  const std::vector<absl::Status> loaded = Loaded(directory.path());
  EXPECT_TRUE(loaded.front().ok()) << loaded.front();
  EXPECT_THAT(std::string(loaded.back().message()),
              HasSubstr("down_proj.weight[0, 3] is 3.4e+38: not a finite number in bfloat16"));
}

TEST(Floats, OfAGgufFileThatAreNotFiniteAreNamed) {
  const json hf = SmallLlama();
  const TempDirectory directory;
  std::string bytes = GgufBytes(ParseHfConfig(hf, "C")->config, "llama", hf);
  const uint16_t bits = Bf16OfFloat(kNaN);
  std::memcpy(bytes.data() + bytes.size() - 2, &bits, sizeof bits);  // the last of what the file has last
  directory.Write("m.gguf", bytes);
  ExpectRefused(directory.path() + "/m.gguf", "/m.gguf: output.weight[");
}

// Every place of every type is looked at, whatever the length.
TEST(FirstNotFinite, FindsEveryPlace) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    const size_t bytes = DTypeBytes(type);
    for (const int64_t n : {1, 7, 64, 129, 1000}) {
      std::vector<char> data(static_cast<size_t>(n) * bytes + 1, '\x01');
      char* const values = data.data() + 1;  // nothing is aligned
      EXPECT_EQ(FirstNotFinite(type, values, n), -1);
      for (int64_t at = 0; at < n; ++at) {
        std::vector<char> before(values + static_cast<size_t>(at) * bytes,
                                 values + static_cast<size_t>(at + 1) * bytes);
        for (const float value : {kNaN, kInf, -kInf}) {
          const uint32_t bits = type == DType::kF32    ? std::bit_cast<uint32_t>(value)
                                : type == DType::kBF16 ? Bf16OfFloat(value)
                                                       : F16OfFloat(value);
          std::memcpy(values + static_cast<size_t>(at) * bytes, &bits, bytes);
          EXPECT_EQ(FirstNotFinite(type, values, n), at) << DTypeName(type) << " of " << n;
        }
        std::ranges::copy(before, values + static_cast<size_t>(at) * bytes);
      }
    }
  }
}

}  // namespace
}  // namespace baton::engine
