#include "text/chat_template.h"

#include <ctime>
#include <utility>

#include "common/status.h"
#include "common/str_cat.h"
#include "nlohmann/json.hpp"
#include "text/gguf_tokenizer.h"
#include "text/model_files.h"
#include "text/rust_call.h"

namespace baton {
namespace {

using nlohmann::json;

/// Tokens that are not set stay undefined in the template, as in transformers.
std::string TokensJson(const TemplateTokens& tokens) {
  json object = json::object();
  const std::pair<const char*, const std::string*> fields[] = {
      {"bos_token", &tokens.bos}, {"eos_token", &tokens.eos}, {"pad_token", &tokens.pad}, {"unk_token", &tokens.unk}};
  for (const auto& [name, text] : fields) {
    if (!text->empty()) object[name] = *text;
  }
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

absl::StatusOr<bt_template*> Compile(std::string_view source, const TemplateTokens& tokens, std::string_view prefix) {
  bt_error error{};
  bt_template* made = bt_template_new(BtStr(source), BtStr(TokensJson(tokens)), &error);
  BATON_RETURN_IF_ERROR(TakeFileError(error, prefix));
  return made;
}

bool ReadsClock(std::string_view source) { return source.find("strftime_now") != source.npos; }

/// The sources a model has; empty = none.
struct Sources {
  std::string plain;
  std::string with_tools;
};

absl::StatusOr<Sources> NamedTemplates(const json& value, const std::string& path) {
  if (value.is_string()) return Sources{value.get<std::string>(), ""};
  const auto wrong = [&path](const std::string& what) {
    return absl::InvalidArgumentError(StrCat(path, ": chat_template ", what));
  };
  if (!value.is_array()) return wrong("is neither a string nor a list of named templates");
  Sources sources;
  for (const json& entry : value) {
    const bool named = entry.is_object() && entry.contains("name") && entry["name"].is_string() &&
                       entry.contains("template") && entry["template"].is_string();
    if (!named) return wrong("has an entry without a name and a template");
    if (entry["name"] == "default") sources.plain = entry["template"].get<std::string>();
    if (entry["name"] == "tool_use") sources.with_tools = entry["template"].get<std::string>();
  }
  if (sources.plain.empty()) return wrong("has no template named \"default\"");
  return sources;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Create(std::string_view source,
                                                                   const TemplateTokens& tokens) {
  BATON_ASSIGN_OR_RETURN(bt_template * made, Compile(source, tokens, ""));
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(made, ReadsClock(source), std::string(source)));
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::FromHfDirectory(const std::string& directory) {
  const std::string config_path = directory + "/tokenizer_config.json";
  const std::string jinja_path = directory + "/chat_template.jinja";
  BATON_ASSIGN_OR_RETURN(const json config, ReadJsonObject(config_path));
  BATON_ASSIGN_OR_RETURN(const json map, ReadJsonObject(directory + "/special_tokens_map.json"));
  TemplateTokens tokens;
  BATON_ASSIGN_OR_RETURN(tokens.bos, SpecialToken(config, map, "bos_token", directory));
  BATON_ASSIGN_OR_RETURN(tokens.eos, SpecialToken(config, map, "eos_token", directory));
  BATON_ASSIGN_OR_RETURN(tokens.pad, SpecialToken(config, map, "pad_token", directory));
  BATON_ASSIGN_OR_RETURN(tokens.unk, SpecialToken(config, map, "unk_token", directory));

  BATON_ASSIGN_OR_RETURN(const std::optional<std::string> jinja, ReadModelFile(jinja_path));
  const bool in_config = config.contains("chat_template") && !config["chat_template"].is_null();
  if (!jinja && !in_config) {
    return absl::NotFoundError(
        StrCat(directory, ": no chat_template.jinja, and no chat_template in tokenizer_config.json"));
  }
  const std::string& path = jinja ? jinja_path : config_path;
  Sources sources;
  if (jinja) {
    sources.plain = *jinja;
  } else {
    BATON_ASSIGN_OR_RETURN(sources, NamedTemplates(config["chat_template"], path));
  }
  BATON_ASSIGN_OR_RETURN(bt_template * plain, Compile(sources.plain, tokens, path + ": "));
  const bool reads_clock = ReadsClock(sources.plain) || ReadsClock(sources.with_tools);
  std::unique_ptr<ChatTemplate> made(
      new ChatTemplate(plain, reads_clock, sources.with_tools.empty() ? sources.plain : sources.with_tools));
  if (!sources.with_tools.empty()) {
    BATON_ASSIGN_OR_RETURN(made->with_tools_, Compile(sources.with_tools, tokens, path + ": "));
  }
  return made;
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::FromGguf(const GgufTokenizerMetadata& metadata,
                                                                     const TemplateTokens& tokens) {
  if (metadata.chat_template.empty()) return absl::NotFoundError("the GGUF file has no tokenizer.chat_template");
  return Create(metadata.chat_template, tokens);
}

ChatTemplate::~ChatTemplate() {
  bt_template_free(plain_);
  bt_template_free(with_tools_);
}

absl::StatusOr<std::string> ChatTemplate::Render(const RenderRequest& request) const {
  const bt_template* chosen = with_tools_ != nullptr && !request.tools_json.empty() ? with_tools_ : plain_;
  const bt_render render{
      BtStr(request.messages_json),   BtStr(request.tools_json),
      BtStr(request.kwargs_json),     request.add_generation_prompt,
      request.continue_final_message, request.now_s.value_or(static_cast<int64_t>(std::time(nullptr)))};
  bt_error error{};
  const bt_buf text = bt_template_render(chosen, &render, &error);
  BATON_RETURN_IF_ERROR(TakeError(error, ""));
  return TakeBuf(text);
}

}  // namespace baton
