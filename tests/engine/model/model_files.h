// Writes model files for tests from a family golden's dummy weights: safetensors (whole or sharded) and GGUF.
#pragma once

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/half.h"
#include "common/json.h"
#include "common/str_cat.h"
#include "engine/model/config/config_reader.h"
#include "engine/model/weight_source.h"
#include "tests/common/gguf_builder.h"

namespace baton::engine {

/// A directory that goes away with the object.
class TempDirectory {
 public:
  TempDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "baton_model_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempDirectory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  void Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << bytes;
  }

 private:
  std::string path_;
};

struct NamedTensor {
  std::string name, type;  ///< "F32", "BF16", "F16"
  std::vector<int64_t> shape;
  std::string bytes;
};

/// bf16 bits as f16 bits; exact for normal values, towards zero below.
inline uint16_t F16OfBf16(uint16_t bits) {
  const int exponent = ((bits >> 7) & 0xff) - 127 + 15;
  if (exponent <= 0) return static_cast<uint16_t>(bits & 0x8000);
  return static_cast<uint16_t>((bits & 0x8000) | exponent << 10 | (bits & 0x7f) << 3);
}

/// The golden's tensors with the names of HF checkpoints.
inline std::vector<NamedTensor> GoldenTensors(const ModelConfig& config, const std::string& type,
                                              const std::string& body = "model.", const std::string& head = "") {
  const std::unique_ptr<WeightSource> dummy = MakeDummyWeights(config, 7);
  std::vector<NamedTensor> out;
  for (const WeightRule& rule : WeightRules(config)) {
    std::vector<uint16_t> bits(rule.elements());
    BATON_CHECK(dummy->Read(rule, DType::kBF16, bits.data()).ok());
    NamedTensor tensor{
        StrCat(rule.weight == Weight::kLmHead ? head : body, HfName(config, rule)), type, rule.shape, {}};
    for (uint16_t b : bits) {
      if (type == "F32")
        tensor.bytes += GgufBuilder::Bytes(FloatOfBf16(b));
      else
        tensor.bytes += GgufBuilder::Bytes(type == "F16" ? F16OfBf16(b) : b);
    }
    out.push_back(std::move(tensor));
  }
  return out;
}

/// The bytes of a safetensors file.
inline std::string SafetensorsBytes(const std::vector<NamedTensor>& tensors) {
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const NamedTensor& t : tensors) {
    header[t.name] = {
        {"dtype", t.type}, {"shape", t.shape}, {"data_offsets", {data.size(), data.size() + t.bytes.size()}}};
    data += t.bytes;
  }
  const std::string text = header.dump();
  return GgufBuilder::Bytes(uint64_t{text.size()}) + text + data;
}

/// Shards of `per_file` tensors and their index.
inline void WriteSharded(const TempDirectory& directory, const std::vector<NamedTensor>& tensors, size_t per_file) {
  nlohmann::json map;
  for (size_t i = 0; i < tensors.size(); i += per_file) {
    const std::string name = StrCat("model-", i / per_file, ".safetensors");
    const std::vector<NamedTensor> part(tensors.begin() + i, tensors.begin() + std::min(tensors.size(), i + per_file));
    for (const NamedTensor& t : part) map[t.name] = name;
    directory.Write(name, SafetensorsBytes(part));
  }
  directory.Write("model.safetensors.index.json", nlohmann::json{{"metadata", {}}, {"weight_map", map}}.dump());
}

/// `rows` · `columns` elements in random blocks of a quantized type: every code, small scales and minimums.
inline std::string RandomBlocks(GgmlType type, int64_t rows, int64_t columns, uint32_t seed) {
  const GgmlBlock block = GgmlBlockOf(type);
  const bool six = type == GgmlType::kQ6_K;  // its one f16 stands last
  const bool two = type != GgmlType::kQ8_0 && type != GgmlType::kQ4_0 && type != GgmlType::kQ5_0 && !six;
  const double largest = block.elements == 256 ? 32 * 63.0 : type == GgmlType::kQ8_0 ? 128 : 16;  // code times scale
  std::mt19937 rng(seed);
  std::string out;
  for (int64_t i = 0; i < rows * columns / block.elements; ++i) {
    std::string one(static_cast<size_t>(block.bytes), 0);
    for (char& c : one) c = static_cast<char>(rng());
    const size_t at = six ? one.size() - 2 : 0;
    for (size_t half = 0; half <= (two ? 1u : 0u); ++half) {
      const float scale = static_cast<float>((0.5 + 0.5 * (rng() % 1024) / 1024) * 0.2 / largest);
      uint16_t bits = F16OfFloat(half == 0 ? scale : block.elements == 256 ? scale / 2 : -7 * scale);
      std::memcpy(one.data() + at + 2 * half, &bits, 2);
    }
    out += one;
  }
  return out;
}

/// What only Gemma's files say.
inline void AddGemmaFields(const ModelConfig& c, const std::string& architecture, const nlohmann::json& hf,
                           GgufBuilder& b) {
  const std::string a = architecture + ".";
  auto number = [&](const std::string& key, float value) {
    b.AddRaw(a + key, GgufValueType::kF32, GgufBuilder::Bytes(value));
  };
  b.AddUint(a + "attention.sliding_window", hf["sliding_window"].get<uint32_t>());
  number("final_logit_softcapping", c.logit_softcap);
  number("attn_logit_softcapping", c.attention_softcap);
  if (architecture != "gemma3") return;
  b.AddUint(a + "attention.sliding_window_pattern", hf["sliding_window_pattern"].get<uint32_t>());
  b.AddString(a + "rope.scaling.type", hf["rope_scaling"]["rope_type"].get<std::string>());
  number("rope.scaling.factor", hf["rope_scaling"]["factor"].get<float>());
}

/// A GGUF file (F32 vectors; matrices of type `stored`, BF16 or F16, or what `matrix_of` makes of a rule) as the usual
/// converter writes it: q and k rows of architectures "llama" and "smollm3" in pairs, Gemma's norms with the 1 added.
inline std::string GgufBytes(const ModelConfig& c, const std::string& architecture, const nlohmann::json& hf,
                             GgmlType stored = GgmlType::kBF16,
                             const std::function<std::string(const WeightRule&)>& matrix_of = nullptr) {
  GgufBuilder b;
  const std::string a = architecture + ".";
  auto number = [&](const std::string& key, float value) {
    b.AddRaw(a + key, GgufValueType::kF32, GgufBuilder::Bytes(value));
  };
  b.AddString("general.architecture", architecture);
  b.AddUint(a + "block_count", c.num_layers)
      .AddUint(a + "embedding_length", c.hidden_size)
      .AddUint(a + "feed_forward_length", c.intermediate_size);
  b.AddUint(a + "attention.head_count", c.num_heads).AddUint(a + "attention.head_count_kv", c.num_kv_heads);
  b.AddUint(a + "attention.key_length", c.head_dim).AddUint(a + "attention.value_length", c.head_dim);
  b.AddUint(a + "context_length", c.max_position_embeddings).AddUint(a + "rope.dimension_count", c.head_dim);
  number("attention.layer_norm_rms_epsilon", c.rms_eps);
  number("rope.freq_base", hf["rope_theta"].get<float>());
  std::string data;
  const std::unique_ptr<WeightSource> dummy = MakeDummyWeights(c, 7);
  auto add = [&](const std::string& name, std::vector<uint64_t> dims, GgmlType type, const std::string& bytes) {
    data.resize((data.size() + 31) / 32 * 32);
    b.AddTensor(name, std::move(dims), static_cast<uint32_t>(type), data.size());
    data += bytes;
  };
  for (const WeightRule& rule : WeightRules(c)) {
    const bool matrix = rule.shape.size() == 2;
    std::vector<float> values(rule.elements());
    BATON_CHECK(dummy->Read(rule, DType::kF32, values.data()).ok());
    const int64_t columns = matrix ? rule.shape[1] : 1, rows = rule.elements() / columns, dim = c.head_dim;
    const bool pairs = (architecture == "llama" || architecture == "smollm3") &&
                       (rule.weight == Weight::kQuery || rule.weight == Weight::kKey ||
                        rule.weight == Weight::kQueryBias || rule.weight == Weight::kKeyBias);
    const bool norm = !matrix && HfName(c, rule).ends_with("norm.weight");
    std::string bytes;
    const std::vector<uint64_t> dims(rule.shape.rbegin(), rule.shape.rend());
    if (matrix && matrix_of) {
      add(GgufName(rule), dims, stored, matrix_of(rule));
      continue;
    }
    for (int64_t row = 0; row < rows; ++row) {
      // Row 2i + j of a head in the file is row j · dim / 2 + i of the model.
      const int64_t from = pairs ? row / dim * dim + row % dim % 2 * (dim / 2) + row % dim / 2 : row;
      for (int64_t i = 0; i < columns; ++i) {
        const float x = values[from * columns + i] + (norm ? c.norm_offset : 0.0f);
        const uint16_t bits = Bf16OfFloat(x);
        bytes +=
            !matrix ? GgufBuilder::Bytes(x) : GgufBuilder::Bytes(stored == GgmlType::kF16 ? F16OfBf16(bits) : bits);
      }
    }
    add(GgufName(rule), dims, matrix ? stored : GgmlType::kF32, bytes);
  }
  if (hf.contains("rope_scaling") && hf["rope_scaling"]["rope_type"] == "llama3") {
    std::string factors;
    for (int i = 0; i < c.head_dim; i += 2) {
      const double plain = std::pow(hf["rope_theta"].get<double>(), -static_cast<double>(i) / c.head_dim);
      factors += GgufBuilder::Bytes(static_cast<float>(plain / c.ropes[0].inv_freq[i / 2]));
    }
    add("rope_freqs.weight", {static_cast<uint64_t>(c.head_dim / 2)}, GgmlType::kF32, factors);
  }
  if (architecture.starts_with("gemma")) AddGemmaFields(c, architecture, hf, b);
  const std::vector<uint8_t> head = b.Build();
  return std::string(head.begin(), head.end()) + data;
}

}  // namespace baton::engine
