// libFuzzer target of what stands between a model file and the decoder: config.json (input begins with '{') or edits of
// a valid GGUF model (anything else: offset in two bytes, new byte). Either gives a status, or a config whose
// weights can be checked and read.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/json.h"
#include "engine/model/config/config_reader.h"
#include "engine/model/kv_groups.h"
#include "engine/model/weight_source.h"
#include "tests/common/gguf_builder.h"

namespace {

using baton::GgmlType;
using baton::GgufBuilder;
using baton::GgufValueType;

// One llama layer of 32 × 32 matrices, in several types.
std::vector<uint8_t> ValidModel() {
  GgufBuilder b;
  b.AddString("general.architecture", "llama").AddUint("llama.block_count", 1).AddUint("llama.embedding_length", 32);
  b.AddUint("llama.feed_forward_length", 32)
      .AddUint("llama.attention.head_count", 2)
      .AddUint("llama.context_length", 64);
  b.AddRaw("llama.attention.layer_norm_rms_epsilon", GgufValueType::kF32, GgufBuilder::Bytes(1e-5f));
  b.AddUint("tokenizer.ggml.eos_token_id", 2).AddStrings("tokenizer.ggml.tokens", {"a", "<|im_end|>"});
  b.AddNumbers<int32_t>("tokenizer.ggml.token_type", GgufValueType::kI32, {1, 3});
  uint64_t at = 0;
  auto add = [&](const char* name, std::vector<uint64_t> dims, GgmlType type) {
    const baton::GgmlBlock block = baton::GgmlBlockOf(type);
    b.AddTensor(name, dims, static_cast<uint32_t>(type), at);
    at += (dims[0] * (dims.size() > 1 ? dims[1] : 1) / block.elements * block.bytes + 31) / 32 * 32;
  };
  const std::pair<const char*, GgmlType> matrices[] = {
      {"blk.0.attn_q.weight", GgmlType::kQ8_0},   {"blk.0.attn_k.weight", GgmlType::kQ4_0},
      {"blk.0.attn_v.weight", GgmlType::kQ4_1},   {"blk.0.attn_output.weight", GgmlType::kQ5_0},
      {"blk.0.ffn_gate.weight", GgmlType::kQ5_1}, {"blk.0.ffn_up.weight", GgmlType::kF16},
      {"blk.0.ffn_down.weight", GgmlType::kBF16}};
  for (const auto& [name, type] : matrices) add(name, {32, 32}, type);
  for (const char* name : {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"})
    add(name, {32}, GgmlType::kF32);
  add("rope_freqs.weight", {8}, GgmlType::kF32);
  add("token_embd.weight", {32, 2}, GgmlType::kF32);
  return b.Build(at);
}

void Use(const baton::engine::ReadConfig& read, const baton::engine::WeightSource* weights) {
  (void)baton::engine::MakeKvLayout(read.config, baton::DType::kF32, 16);
  if (weights == nullptr) return;
  for (const baton::engine::WeightRule& rule : baton::engine::WeightRules(read.config)) {
    if (!weights->Check(rule).ok() || rule.elements() > 1 << 16) continue;
    std::vector<float> values(rule.elements());
    (void)weights->Read(rule, baton::DType::kF32, values.data());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0 && data[0] == '{') {
    const nlohmann::json json = nlohmann::json::parse(data, data + size, nullptr, false);
    if (!json.is_object()) return 0;
    const auto read = baton::engine::ParseHfConfig(json, "fuzz");
    if (read.ok()) Use(*read, nullptr);
    return 0;
  }
  static const std::vector<uint8_t> valid = ValidModel();
  std::vector<uint8_t> bytes = valid;
  for (size_t i = 0; i + 2 < size; i += 3) bytes[(data[i] | data[i + 1] << 8) % bytes.size()] = data[i + 2];
  auto file = baton::GgufFile::Parse(bytes, "fuzz");
  if (!file.ok()) return 0;
  const std::shared_ptr<const baton::GgufFile> shared = std::move(*file);
  const auto read = baton::engine::ReadGgufConfig(*shared);
  if (!read.ok()) return 0;
  const auto weights = baton::engine::OpenGgufWeights(shared, read->config);
  if (weights.ok()) Use(*read, weights->get());
  return 0;
}
