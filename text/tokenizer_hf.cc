// Tokenizer::FromHfDirectory: which of a model's files says what, as transformers reads them.
#include <algorithm>
#include <cstdlib>

#include "common/status.h"
#include "common/str_cat.h"
#include "nlohmann/json.hpp"
#include "text/model_files.h"
#include "text/rust_call.h"
#include "text/tokenizer.h"

namespace baton {
namespace {

using nlohmann::json;

/// An added token in the form the Rust half reads; `value` is a string or an object with "content".
std::optional<json> AddedToken(const json& value, bool special) {
  json token = {{"content", ""},   {"single_word", false},   {"lstrip", false},
                {"rstrip", false}, {"normalized", !special}, {"special", special}};
  if (value.is_string()) {
    token["content"] = value;
    return token;
  }
  if (!value.is_object() || !value.contains("content") || !value["content"].is_string()) return std::nullopt;
  for (const auto& [key, field] : value.items()) {
    if (token.contains(key) && token[key].type() == field.type()) token[key] = field;
  }
  if (special) token["special"] = true;
  return token;
}

/// Tokens that tokenizer_config.json and special_tokens_map.json add to tokenizer.json's.
std::string ExtraTokens(const json& config, const json& map) {
  json extra = json::array();
  const auto add = [&extra](const json& value, bool special) {
    if (std::optional<json> token = AddedToken(value, special); token && (*token)["content"] != "") {
      extra.push_back(std::move(*token));
    }
  };
  std::vector<std::pair<long, const json*>> by_id;
  if (const auto it = config.find("added_tokens_decoder"); it != config.end() && it->is_object()) {
    for (const auto& [id, token] : it->items()) by_id.emplace_back(std::strtol(id.c_str(), nullptr, 10), &token);
  }
  std::sort(by_id.begin(), by_id.end());
  for (const auto& [id, token] : by_id) add(*token, token->is_object() && token->value("special", json()) == true);
  for (const json* object : {&config, &map}) {
    for (const char* name :
         {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
      if (object->contains(name)) add((*object)[name], true);
    }
    for (const char* name : {"additional_special_tokens", "extra_special_tokens"}) {
      if (!object->contains(name)) continue;
      for (const json& token : (*object)[name]) add(token, true);
    }
  }
  return extra.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// 1, 0, or -1 if it is not said.
absl::StatusOr<int32_t> Flag(const json& config, const char* name, const std::string& path) {
  const auto it = config.find(name);
  if (it == config.end() || it->is_null()) return -1;
  if (!it->is_boolean()) return absl::InvalidArgumentError(StrCat(path, ": ", name, " is not a bool"));
  return it->get<bool>() ? 1 : 0;
}

absl::StatusOr<std::vector<int64_t>> EosIds(const std::string& directory) {
  const std::string generation_path = directory + "/generation_config.json";
  BATON_ASSIGN_OR_RETURN(const json generation, ReadJsonObject(generation_path));
  BATON_ASSIGN_OR_RETURN(std::vector<int64_t> ids, IdList(generation, "eos_token_id", generation_path));
  if (!ids.empty()) return ids;
  const std::string config_path = directory + "/config.json";
  BATON_ASSIGN_OR_RETURN(const json config, ReadJsonObject(config_path));
  const auto text = config.find("text_config");
  const bool nested = text != config.end() && text->is_object() && !config.contains("eos_token_id");
  return IdList(nested ? *text : config, "eos_token_id", config_path);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromHfDirectory(const std::string& directory) {
  const std::string path = directory + "/tokenizer.json";
  BATON_ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadModelFile(path));
  if (!text) return absl::NotFoundError(StrCat(path, ": no such file; a model directory needs a tokenizer.json"));
  const std::string config_path = directory + "/tokenizer_config.json";
  BATON_ASSIGN_OR_RETURN(const json config, ReadJsonObject(config_path));
  BATON_ASSIGN_OR_RETURN(const json map, ReadJsonObject(directory + "/special_tokens_map.json"));
  SpecialTokens special;
  BATON_ASSIGN_OR_RETURN(special.bos, SpecialToken(config, map, "bos_token", directory));
  BATON_ASSIGN_OR_RETURN(special.eos, SpecialToken(config, map, "eos_token", directory));
  BATON_ASSIGN_OR_RETURN(special.pad, SpecialToken(config, map, "pad_token", directory));
  BATON_ASSIGN_OR_RETURN(const int32_t add_bos, Flag(config, "add_bos_token", config_path));
  BATON_ASSIGN_OR_RETURN(const int32_t add_eos, Flag(config, "add_eos_token", config_path));
  BATON_ASSIGN_OR_RETURN(const std::vector<int64_t> eos_ids, EosIds(directory));

  const std::string extra = ExtraTokens(config, map);
  const bt_affixes affixes{add_bos, add_eos, BtStr(special.bos), BtStr(special.eos)};
  bt_error error{};
  bt_tokenizer* handle = bt_tokenizer_from_json(BtStr(*text), BtStr(extra), &affixes, &error);
  BATON_RETURN_IF_ERROR(TakeFileError(error, path + ": "));
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer(handle));
  tokenizer->SetSpecialTokens(std::move(special), eos_ids);
  return tokenizer;
}

}  // namespace baton
