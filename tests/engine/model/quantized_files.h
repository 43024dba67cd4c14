// Writes a small model whose linear layers are in codes as AWQ, GPTQ or compressed-tensors keep them, and one whose
// floats are what the codes stand for. Scales are bf16 numbers in f16, so that no device rounds them.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "common/float8.h"
#include "tests/engine/model/model_files.h"

namespace baton::engine {

/// Outputs of float8 that share their scales, where nothing else is said.
inline constexpr int64_t kFloat8Outputs = 96;

/// `method` is quant_method; "float-quantized" is compressed-tensors' format of that name.
struct CodesCase {
  const char* name;
  const char* method;
  int bits;
  int64_t group;  ///< 0: one scale for the whole tensor (float8)
  bool ordered = false;
  const char* inputs = nullptr;  ///< of float8: "dynamic" or "static"; null: they stay as they are
  int64_t outputs = kFloat8Outputs;
  bool float8() const { return method == std::string("fp8") || method == std::string("float-quantized"); }
};
inline constexpr CodesCase kAwqCase{"awq", "awq", 4, 64}, kGptqCase{"gptq", "gptq", 4, 32},
    kOrderedCase{"gptq_ordered", "gptq", 4, 64, true}, kGptq8Case{"gptq_8", "gptq", 8, 64},
    kOrdered8Case{"gptq_8_ordered", "gptq", 8, 32, true}, kPackedCase{"packed", "compressed-tensors", 4, 64},
    kFloat8Case{"float8", "float-quantized", 8, 64}, kFloat8TensorCase{"float8_tensor", "float-quantized", 8, 0};
/// Their inputs become float8, too.
inline constexpr CodesCase kRoundedCase{"rounded", "fp8", 8, 64, false, "dynamic"},
    kRoundedTensorCase{"rounded_tensor", "float-quantized", 8, 0, false, "dynamic"},
    kRoundedFixedCase{"rounded_fixed", "fp8", 8, 0, false, "static"},
    kBlocksCase{"blocks", "fp8", 8, 128, false, "dynamic", 128};
/// Of kRoundedFixedCase's layers: it cuts inputs off at ±3.5.
inline constexpr float kInputScale = 0.0078125f;

inline nlohmann::json QuantizationOf(const CodesCase& how) {
  const std::string method = how.method;
  if (method == "compressed-tensors") {
    const nlohmann::json weights = {{"num_bits", how.bits}, {"type", "int"},           {"symmetric", true},
                                    {"strategy", "group"},  {"group_size", how.group}, {"actorder", nullptr}};
    return {{"quant_method", method},
            {"format", "pack-quantized"},
            {"config_groups", {{"group_0", {{"weights", weights}, {"input_activations", nullptr}}}}}};
  }
  if (method == "float-quantized") {
    nlohmann::json weights = {{"num_bits", how.bits}, {"type", "float"}, {"strategy", "tensor"}}, inputs = nullptr;
    if (how.group != 0) weights.update({{"strategy", "block"}, {"block_structure", {how.outputs, how.group}}});
    if (how.inputs != nullptr) inputs = {{"num_bits", 8}, {"type", "float"}, {"strategy", "token"}, {"dynamic", true}};
    return {{"quant_method", "compressed-tensors"},
            {"format", method},
            {"config_groups", {{"group_0", {{"weights", weights}, {"input_activations", inputs}}}}}};
  }
  if (method == "fp8") {
    nlohmann::json out = {{"quant_method", method}, {"activation_scheme", how.inputs}};
    if (how.group != 0) out["weight_block_size"] = {how.outputs, how.group};
    return out;
  }
  nlohmann::json out = {{"quant_method", method}, {"bits", how.bits}, {"group_size", how.group}};
  if (method == "gptq") out["desc_act"] = how.ordered;
  return out;
}

/// One layer [n, k] in codes. Those of one `order_seed` have one order of inputs.
struct QuantizedLayer {
  QuantizedLayer(const CodesCase& how, const std::string& name, int64_t n_in, int64_t k_in, uint32_t seed,
                 uint32_t order_seed)
      : n(n_in),
        k(k_in),
        groups(how.group == 0 ? 1 : k / how.group),
        outputs(how.group == 0 ? n : how.outputs),
        bits(how.bits) {
    std::mt19937 random(seed), order(order_seed);
    const auto draw = [&](uint32_t end) { return static_cast<uint32_t>(random() % end); };
    const bool packed = how.method == std::string("compressed-tensors");
    float8 = how.float8();
    for (int64_t i = 0; i < n * k; ++i) codes.push_back(draw(1u << bits));
    for (int64_t i = 0; i < n * groups; ++i) {
      zeros.push_back(packed ? 1u << (bits - 1) : (1u << (bits - 1)) - 2 + draw(4));
      scales.push_back(F16OfFloat(static_cast<float>(128 + draw(128)) / (bits == 4 ? 0x1p13f : 0x1p17f)));
    }
    for (int64_t i = 0; i < k; ++i) group_of.push_back(static_cast<int32_t>(i * groups / k));
    if (how.ordered) std::shuffle(group_of.begin(), group_of.end(), order);
    if (float8) {
      WriteFloat8(how, name);
    } else if (packed) {
      WritePacked(name);
    } else {
      WriteColumns(how, name);
    }
  }
  float Value(int64_t row, int64_t column) const {
    const auto g = static_cast<size_t>(row * groups + group_of[static_cast<size_t>(column)]);
    if (float8) {
      const auto code = static_cast<uint8_t>(Code(row, column));
      return FloatOfE4m3(code) *
             FloatOfF16(
                 scales[static_cast<size_t>(row / outputs * outputs * groups) + g % static_cast<size_t>(groups)]);
    }
    const int code = static_cast<int>(codes[static_cast<size_t>(row * k + column)]);
    return static_cast<float>(code - static_cast<int>(zeros[g])) * FloatOfF16(scales[g]);
  }
  std::string Values() const {
    std::string out;
    for (int64_t row = 0; row < n; ++row)
      for (int64_t column = 0; column < k; ++column) out += GgufBuilder::Bytes(Value(row, column));
    return out;
  }

  int64_t n, k, groups;
  int64_t outputs;  ///< that share their scales, of float8
  int bits;
  bool float8 = false;
  std::vector<uint32_t> codes;    ///< [n, k]
  std::vector<uint32_t> zeros;    ///< [n, groups]
  std::vector<uint16_t> scales;   ///< [n, groups] f16
  std::vector<int32_t> group_of;  ///< [k]
  std::vector<NamedTensor> tensors;

 private:
  int64_t per_word() const { return 32 / bits; }
  template <typename Of>
  std::string Word(Of&& of) const {
    uint32_t word = 0;
    for (int64_t i = 0; i < per_word(); ++i) word |= of(i) << (bits * i);
    return GgufBuilder::Bytes(word);
  }
  uint32_t Code(int64_t row, int64_t column) const { return codes[static_cast<size_t>(row * k + column)]; }
  uint32_t Zero(int64_t row, int64_t g) const { return zeros[static_cast<size_t>(row * groups + g)]; }
  void WriteColumns(const CodesCase& how, const std::string& name) {
    constexpr int kAwqOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    const bool awq = how.method == std::string("awq");
    const int64_t per = per_word();
    std::string words, zero_words, rows;
    for (int64_t i = 0; i < k; i += awq ? 1 : per)
      for (int64_t c = 0; c < n; c += awq ? per : 1)
        words += Word([&](int64_t j) { return awq ? Code(c + kAwqOrder[j], i) : Code(c, i + j); });
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t c = 0; c < n; c += per)
        zero_words += Word([&](int64_t j) { return awq ? Zero(c + kAwqOrder[j], g) : Zero(c + j, g) - 1; });
      for (int64_t c = 0; c < n; ++c) rows += GgufBuilder::Bytes(scales[static_cast<size_t>(c * groups + g)]);
    }
    std::string order;
    for (const int32_t g : group_of) order += GgufBuilder::Bytes(g);
    const std::vector<int64_t> shape = awq ? std::vector{k, n / per} : std::vector{k / per, n};
    tensors = {{name + ".qweight", "I32", shape, words},
               {name + ".qzeros", "I32", {groups, n / per}, zero_words},
               {name + ".scales", "F16", {groups, n}, rows}};
    if (!awq) tensors.push_back({name + ".g_idx", "I32", {k}, order});
  }
  void WriteFloat8(const CodesCase& how, const std::string& name) {
    std::string bytes, blocks;
    for (uint32_t& code : codes) {
      if ((code & 127) == 127) code = 0;  // not a number
      bytes += static_cast<char>(code);
    }
    const int64_t rows = (n + outputs - 1) / outputs;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t g = 0; g < groups; ++g)
        blocks += GgufBuilder::Bytes(FloatOfF16(scales[static_cast<size_t>(r * outputs * groups + g)]));
    }
    tensors = {{name + ".weight", "F8_E4M3", {n, k}, bytes},
               {name + (how.method == std::string("fp8") && how.group != 0 ? ".weight_scale_inv" : ".weight_scale"),
                "F32",
                {rows, groups},
                blocks}};
    if (how.inputs != nullptr && how.inputs == std::string("static"))
      tensors.push_back({name + ".input_scale", "F32", {}, GgufBuilder::Bytes(kInputScale)});
  }
  void WritePacked(const std::string& name) {
    std::string words, rows;
    for (int64_t c = 0; c < n; ++c) {
      for (int64_t i = 0; i < k; i += per_word()) words += Word([&](int64_t j) { return Code(c, i + j); });
      for (int64_t g = 0; g < groups; ++g) rows += GgufBuilder::Bytes(scales[static_cast<size_t>(c * groups + g)]);
    }
    tensors = {{name + ".weight_packed", "I32", {n, k / per_word()}, words},
               {name + ".weight_scale", "F16", {n, groups}, rows},
               {name + ".weight_shape", "I64", {2}, GgufBuilder::Bytes(n) + GgufBuilder::Bytes(k)}};
  }
};

/// A small llama in DIR/codes and DIR/floats.
class QuantizedModel {
 public:
  explicit QuantizedModel(const CodesCase& how,
                          const std::function<void(std::vector<NamedTensor>&)>& change = nullptr) {
    std::ifstream in("tests/engine/model/goldens/llama3/config.json");
    nlohmann::json hf = nlohmann::json::parse(in);
    hf["hidden_size"] = 256;
    hf["intermediate_size"] = 384;
    hf["num_hidden_layers"] = 2;
    hf["num_attention_heads"] = 4;
    hf["num_key_value_heads"] = 4;
    hf["head_dim"] = 64;
    const ModelConfig config = ParseHfConfig(hf, "C")->config;
    std::vector<NamedTensor> floats = GoldenTensors(config, "F32"), codes;
    const std::vector<WeightRule> rules = WeightRules(config);
    for (size_t i = 0; i < rules.size(); ++i) {
      const WeightRule& rule = rules[i];
      if (rule.shape.size() != 2 || rule.layer < 0) {
        codes.push_back(floats[i]);
        continue;
      }
      const QuantizedLayer layer(how, floats[i].name.substr(0, floats[i].name.rfind('.')), rule.rows(), rule.columns(),
                                 static_cast<uint32_t>(i), OrderOf(rule));
      codes.insert(codes.end(), layer.tensors.begin(), layer.tensors.end());
      floats[i].bytes = layer.Values();
    }
    if (change) change(codes);
    Write("floats", hf, floats);
    hf["quantization_config"] = QuantizationOf(how);
    Write("codes", hf, codes);
  }
  std::string codes() const { return directory_.path() + "/codes"; }
  std::string floats() const { return directory_.path() + "/floats"; }

 private:
  // What multiplies the same x has one order.
  static uint32_t OrderOf(const WeightRule& rule) {
    const bool norm = rule.weight == Weight::kQuery || rule.weight == Weight::kKey || rule.weight == Weight::kValue;
    const bool up = rule.weight == Weight::kGate || rule.weight == Weight::kUp;
    return static_cast<uint32_t>(rule.layer * 8 + (norm ? 0 : up ? 1 : rule.weight == Weight::kOutput ? 2 : 3));
  }
  void Write(const std::string& name, const nlohmann::json& hf, const std::vector<NamedTensor>& tensors) const {
    std::filesystem::create_directory(directory_.path() + "/" + name);
    directory_.Write(name + "/config.json", hf.dump());
    directory_.Write(name + "/model.safetensors", SafetensorsBytes(tensors));
  }
  TempDirectory directory_;
};

}  // namespace baton::engine
