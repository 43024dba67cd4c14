#include "engine/model/config/config_reader.h"

#include <algorithm>

#include "common/foreign_text.h"
#include "common/json.h"
#include "common/status.h"
#include "engine/model/config/families/family.h"

namespace baton::engine {
namespace {

constexpr uint64_t kMaxConfigBytes = 16 << 20;

// A multimodal Gemma 3 keeps its text tower's fields one level down; some stand only above.
absl::StatusOr<nlohmann::json> TextConfig(const nlohmann::json& json, const std::string& where) {
  if (json.value("model_type", nlohmann::json()) != "gemma3") return json;
  const nlohmann::json text = json.value("text_config", nlohmann::json());
  if (!text.is_null() && !text.is_object())
    return absl::InvalidArgumentError(StrCat(where, ": text_config is no object: ", ShownJson(text)));
  nlohmann::json out = text.is_null() ? nlohmann::json::object() : text;
  out["model_type"] = "gemma3_text";
  for (const char* key : {"eos_token_id", "bos_token_id", "tie_word_embeddings", "quantization_config"}) {
    if (!out.contains(key) && json.contains(key)) out[key] = json[key];
  }
  return out;
}

void AddEos(JsonFields& in, ModelConfig& out) {
  for (int64_t id : in.IntOrInts("eos_token_id")) {
    const bool known = std::find(out.eos_token_ids.begin(), out.eos_token_ids.end(), id) != out.eos_token_ids.end();
    if (id >= 0 && id < out.vocab_size && !known) out.eos_token_ids.push_back(static_cast<int32_t>(id));
  }
}

void SetSpecialTokens(JsonFields& in, ModelConfig& out) {
  AddEos(in, out);
  const std::vector<int64_t> bos = in.IntOrInts("bos_token_id");
  if (!bos.empty() && bos[0] >= 0 && bos[0] < out.vocab_size) out.bos_token_id = static_cast<int32_t>(bos[0]);
}

absl::Status Override(const ConfigOverrides& overrides, nlohmann::json& config) {
  for (const std::string& one : overrides) {
    const nlohmann::json over = nlohmann::json::parse(one, nullptr, /*allow_exceptions=*/false);
    if (!over.is_object())
      return absl::InvalidArgumentError(StrCat(Printable(one), " is no JSON object (--hf-overrides, --rope-scaling)"));
    for (const char* key : {"rope_theta", "rope_scaling"}) {
      if (over.contains(key) && config.contains("rope_parameters") && !over.contains("rope_parameters")) {
        return absl::InvalidArgumentError(StrCat("the config has rope_parameters, over which ", key,
                                                 " says nothing: --hf-overrides "
                                                 "'{\"rope_parameters\": {…}}'"));
      }
    }
    config.update(over);
  }
  return absl::OkStatus();
}

std::string ConfigPath(const std::string& directory) { return directory + "/config.json"; }

// Older checkpoints say in a file of its own what they are quantized by: GPTQ's, or with AWQ's names of the fields.
absl::Status AddOlderQuantization(const std::string& directory, nlohmann::json& config) {
  if (config.contains("quantization_config")) return absl::OkStatus();
  for (const char* name : {"quantize_config.json", "quant_config.json"}) {
    absl::StatusOr<nlohmann::json> older = ReadJsonObject(StrCat(directory, "/", name), kMaxConfigBytes);
    if (absl::IsNotFound(older.status())) continue;
    BATON_RETURN_IF_ERROR(older.status());
    if (!older->contains("quant_method")) (*older)["quant_method"] = older->contains("w_bit") ? "awq" : "gptq";
    config["quantization_config"] = *std::move(older);
    return absl::OkStatus();
  }
  return absl::OkStatus();
}

// What generation_config.json says beside config.json.
absl::Status AddGenerationEos(const std::string& directory, ModelConfig& out) {
  const std::string generation = directory + "/generation_config.json";
  absl::StatusOr<nlohmann::json> more = ReadJsonObject(generation, kMaxConfigBytes);
  if (absl::IsNotFound(more.status())) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(more.status());
  JsonFields in(*more, generation);
  AddEos(in, out);
  return in.status();
}

}  // namespace

absl::StatusOr<ReadConfig> ParseHfConfig(const nlohmann::json& json, const std::string& where,
                                         const ConfigOverrides& overrides) {
  BATON_ASSIGN_OR_RETURN(nlohmann::json text, TextConfig(json, where));
  BATON_RETURN_IF_ERROR(Override(overrides, text));
  JsonFields in(text, where);
  const std::string type = in.StringOr("model_type", "");
  BATON_RETURN_IF_ERROR(in.status());
  const Family* family = FindFamily(type);
  if (family == nullptr) {
    return absl::InvalidArgumentError(
        StrCat(where, ": model_type ", Quoted(type), " is not supported (", KnownModelTypes(), " are)"));
  }
  ReadConfig out;
  out.config.family = std::string(family->name);
  family->parse(in, out.config);
  BATON_RETURN_IF_ERROR(in.status());
  SetSpecialTokens(in, out.config);
  BATON_RETURN_IF_ERROR(in.status());
  BATON_ASSIGN_OR_RETURN(out.quantization, ParseQuantization(text, where));
  out.text = text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return out;
}

absl::StatusOr<ReadConfig> ReadHfConfig(const std::string& directory, const ConfigOverrides& overrides) {
  const std::string path = ConfigPath(directory);
  BATON_ASSIGN_OR_RETURN(nlohmann::json json, ReadJsonObject(path, kMaxConfigBytes));
  BATON_RETURN_IF_ERROR(AddOlderQuantization(directory, json));
  BATON_ASSIGN_OR_RETURN(ReadConfig out, ParseHfConfig(json, path, overrides));
  BATON_RETURN_IF_ERROR(AddGenerationEos(directory, out.config));
  return out;
}

absl::StatusOr<ReadConfig> ReadGgufConfig(const GgufFile& file, const ConfigOverrides& overrides,
                                          const std::string& directory) {
  BATON_ASSIGN_OR_RETURN(const nlohmann::json own, GgufToHfConfig(file));
  if (directory.empty()) return ParseHfConfig(own, file.name(), overrides);
  const std::string path = ConfigPath(directory);
  BATON_ASSIGN_OR_RETURN(const nlohmann::json given, ReadJsonObject(path, kMaxConfigBytes));
  BATON_ASSIGN_OR_RETURN(nlohmann::json json, TextConfig(given, path));
  JsonFields in(json, path);
  const std::string type = in.StringOr("model_type", ""), own_type = own.value("model_type", "");
  BATON_RETURN_IF_ERROR(in.status());
  if (const Family* family = FindFamily(type); family != nullptr && family != FindFamily(own_type)) {
    return absl::InvalidArgumentError(
        StrCat(path, ": model_type ", Quoted(type), ", but ", file.name(), " is a model of ", Quoted(own_type)));
  }
  json.erase("quantization_config");
  for (const char* key : {"norms_hold_offset", "attention_bias", "attention_out_bias", "tie_word_embeddings"}) {
    if (own.contains(key)) json[key] = own[key];
  }
  BATON_ASSIGN_OR_RETURN(ReadConfig out, ParseHfConfig(json, path, overrides));
  BATON_RETURN_IF_ERROR(AddGenerationEos(directory, out.config));
  return out;
}

}  // namespace baton::engine
