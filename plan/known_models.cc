#include "plan/known_models.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/check.h"
#include "common/json.h"
#include "common/nearest_name.h"
#include "common/str_cat.h"
#include "engine/model/config/config_reader.h"
#include "engine/model/kv_groups.h"

namespace baton::plan {
namespace {

constexpr KnownModel kModels[] = {
    // name, family, hidden, inner, layers, heads, kv heads, head dim, vocabulary, context, tied, window
    {"llama-2-7b", "llama", 4096, 11008, 32, 32, 32, 128, 32000, 4096},
    {"llama-2-13b", "llama", 5120, 13824, 40, 40, 40, 128, 32000, 4096},
    {"llama-2-70b", "llama", 8192, 28672, 80, 64, 8, 128, 32000, 4096},
    {"llama-3-8b", "llama", 4096, 14336, 32, 32, 8, 128, 128256, 8192},
    {"llama-3-70b", "llama", 8192, 28672, 80, 64, 8, 128, 128256, 8192},
    {"llama-3.1-8b", "llama", 4096, 14336, 32, 32, 8, 128, 128256, 131072},
    {"llama-3.1-70b", "llama", 8192, 28672, 80, 64, 8, 128, 128256, 131072},
    {"llama-3.1-405b", "llama", 16384, 53248, 126, 128, 8, 128, 128256, 131072},
    {"llama-3.2-1b", "llama", 2048, 8192, 16, 32, 8, 64, 128256, 131072, true},
    {"llama-3.2-3b", "llama", 3072, 8192, 28, 24, 8, 128, 128256, 131072, true},
    {"smollm2-135m", "llama", 576, 1536, 30, 9, 3, 64, 49152, 8192, true},
    {"smollm2-1.7b", "llama", 2048, 8192, 24, 32, 32, 64, 49152, 8192, true},
    {"qwen2.5-0.5b", "qwen2", 896, 4864, 24, 14, 2, 64, 151936, 32768, true},
    {"qwen2.5-1.5b", "qwen2", 1536, 8960, 28, 12, 2, 128, 151936, 32768, true},
    {"qwen2.5-7b", "qwen2", 3584, 18944, 28, 28, 4, 128, 152064, 32768},
    {"qwen2.5-14b", "qwen2", 5120, 13824, 48, 40, 8, 128, 152064, 32768},
    {"qwen2.5-32b", "qwen2", 5120, 27648, 64, 40, 8, 128, 152064, 32768},
    {"qwen2.5-72b", "qwen2", 8192, 29568, 80, 64, 8, 128, 152064, 32768},
    {"qwen3-0.6b", "qwen3", 1024, 3072, 28, 16, 8, 128, 151936, 40960, true},
    {"qwen3-8b", "qwen3", 4096, 12288, 36, 32, 8, 128, 151936, 40960},
    {"qwen3-32b", "qwen3", 5120, 25600, 64, 64, 8, 128, 151936, 40960},
    {"mistral-7b-v0.3", "mistral", 4096, 14336, 32, 32, 8, 128, 32768, 32768},
    {"mistral-small-24b", "mistral", 5120, 32768, 40, 32, 8, 128, 131072, 32768},
    {"smollm3-3b", "smollm3", 2048, 11008, 36, 16, 4, 128, 128256, 65536, true},
    {"gemma-2-9b", "gemma2", 3584, 14336, 42, 16, 8, 256, 256000, 8192, true, 4096},
    {"gemma-3-1b", "gemma3_text", 1152, 6912, 26, 4, 1, 256, 262144, 32768, true, 512},
};

absl::Status WrongShape(std::string_view text, std::string_view what) {
  std::vector<std::string> names;
  for (const KnownModel& one : kModels) names.emplace_back(one.name);
  return absl::InvalidArgumentError(StrCat("--model-shape \"", text, "\": ", what,
                                           DidYouMean(std::string(text), names, ""),
                                           "; `baton plan --kv-table` lists "
                                           "the names, and layers=32,hidden=4096,heads=32,kv-heads=8,inner=14336,"
                                           "vocab=128256 is a shape"));
}

int* FieldOf(std::string_view name, KnownModel& shape) {
  return name == "layers"     ? &shape.layers
         : name == "hidden"   ? &shape.hidden
         : name == "heads"    ? &shape.heads
         : name == "kv-heads" ? &shape.kv_heads
         : name == "inner"    ? &shape.inner
         : name == "vocab"    ? &shape.vocab
         : name == "head-dim" ? &shape.head_dim
         : name == "context"  ? &shape.context
                              : nullptr;
}

// Of the weights in the files: attention, MLP, embedding and head; norms and biases are left out.
double Parameters(const KnownModel& m) {
  const double hidden = m.hidden, q = static_cast<double>(m.heads) * m.head_dim,
               kv = static_cast<double>(m.kv_heads) * m.head_dim;
  return m.layers * hidden * (2 * q + 2 * kv + 3.0 * m.inner) + hidden * m.vocab * (m.tied ? 1 : 2);
}

}  // namespace

std::span<const KnownModel> KnownModels() { return kModels; }

std::string ConfigJson(const KnownModel& model) {
  nlohmann::ordered_json json = {{"model_type", model.family},
                                 {"hidden_size", model.hidden},
                                 {"intermediate_size", model.inner},
                                 {"num_hidden_layers", model.layers},
                                 {"num_attention_heads", model.heads},
                                 {"num_key_value_heads", model.kv_heads},
                                 {"head_dim", model.head_dim},
                                 {"vocab_size", model.vocab},
                                 {"max_position_embeddings", model.context},
                                 {"tie_word_embeddings", model.tied}};
  if (model.window > 0) json["sliding_window"] = model.window;
  if (model.window == 0 && model.family == "mistral") json["sliding_window"] = nullptr;  // absent it is 4096 there
  return json.dump(2) + "\n";
}

absl::StatusOr<KnownModel> ShapeOf(std::string_view text) {
  for (const KnownModel& one : kModels) {
    if (one.name == text) return one;
  }
  if (text.find('=') == std::string_view::npos) return WrongShape(text, "no such model");
  KnownModel shape{.name = "shape", .family = "llama", .context = 32768};
  const std::vector<std::string> parts = absl::StrSplit(std::string(text), ',');
  for (const std::string& part : parts) {
    const size_t equals = std::min(part.find('='), part.size());
    const std::string name = part.substr(0, equals), value = part.substr(std::min(equals + 1, part.size()));
    int number = 0;
    int* const field = FieldOf(name, shape);
    if ((field == nullptr && name != "tied") || !absl::SimpleAtoi(value, &number) || number < 0 || number > 1 << 24)
      return WrongShape(text, StrCat("\"", part, "\" is no size"));
    if (field == nullptr) {
      shape.tied = number != 0;
    } else {
      *field = number;
    }
  }
  for (const auto& [name, value] : {std::pair{"layers", shape.layers},
                                    {"hidden", shape.hidden},
                                    {"heads", shape.heads},
                                    {"kv-heads", shape.kv_heads},
                                    {"inner", shape.inner},
                                    {"vocab", shape.vocab}}) {
    if (value == 0) return WrongShape(text, StrCat(name, " is missing"));
  }
  if (shape.head_dim == 0) shape.head_dim = shape.hidden / shape.heads;
  return shape;
}

std::string KvTable(DType kv_dtype) {
  std::string out = absl::StrFormat("%-20s %10s %8s %9s %9s %8s %14s %14s\n", "model", "parameters", "layers",
                                    "KV heads", "head dim", "window", "KV bytes/token", "tokens in 1 GiB");
  for (const KnownModel& model : kModels) {
    const absl::StatusOr<engine::ReadConfig> read =
        engine::ParseHfConfig(nlohmann::json::parse(ConfigJson(model)), std::string(model.name));
    BATON_CHECK(read.ok(), read.status().message());
    const KvLayout layout = engine::MakeKvLayout(read->config, kv_dtype, kUnitTokens).value();
    // Of a short text: layers with a window keep all of it until it is longer than that.
    const int64_t bytes = layout.BytesPerToken();
    absl::StrAppendFormat(&out, "%-20s %8.2f B %8d %9d %9d %8s %14d %14d\n", model.name, Parameters(model) / 1e9,
                          model.layers, model.kv_heads, model.head_dim, model.window > 0 ? StrCat(model.window) : "-",
                          bytes, (int64_t{1} << 30) / bytes);
  }
  return out;
}

}  // namespace baton::plan
