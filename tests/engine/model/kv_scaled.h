// Small models of floats whose checkpoint gives each layer scales of KV in e4m3: others for keys than for values.
#pragma once

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tests/engine/model/model_files.h"

namespace baton::engine {

inline float KeyScale(int layer) { return 0.02f * static_cast<float>(layer + 1); }
inline float ValueScale(int layer) { return 0.011f * static_cast<float>(layer + 2); }
inline NamedTensor KvScaleTensor(int layer, const std::string& name, float scale) {
  return {StrCat("model.layers.", layer, ".self_attn.", name), "F32", {1}, GgufBuilder::Bytes(scale)};
}

class KvScaledModel {
 public:
  /// Of tests/engine/model/goldens/`family`, its config overwritten by `more`. `change` gets the tensors and may do
  /// with them what it likes.
  explicit KvScaledModel(const std::string& family,
                         const std::function<void(std::vector<NamedTensor>&)>& change = nullptr,
                         const nlohmann::json& more = nlohmann::json::object()) {
    std::ifstream in("tests/engine/model/goldens/" + family + "/config.json");
    nlohmann::json hf = nlohmann::json::parse(in);
    hf.update(more);
    const ModelConfig config = ParseHfConfig(hf, "C")->config;
    std::vector<NamedTensor> tensors = GoldenTensors(config, "BF16");
    for (int layer = 0; layer < config.num_layers; ++layer) {
      tensors.push_back(KvScaleTensor(layer, "k_scale", KeyScale(layer)));
      tensors.push_back(KvScaleTensor(layer, "v_scale", ValueScale(layer)));
    }
    if (change) change(tensors);
    directory_.Write("config.json", hf.dump());
    directory_.Write("model.safetensors", SafetensorsBytes(tensors));
  }
  const std::string& path() const { return directory_.path(); }

 private:
  TempDirectory directory_;
};

/// A change that leaves the scales out.
inline void WithoutKvScales(std::vector<NamedTensor>& tensors) {
  std::erase_if(tensors, [](const NamedTensor& t) { return t.name.ends_with("_scale"); });
}

}  // namespace baton::engine
