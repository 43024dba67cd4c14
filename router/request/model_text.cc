#include "router/request/model_text.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string_view>
#include <type_traits>
#include <utility>

#include "common/foreign_text.h"
#include "common/gguf.h"
#include "common/json.h"
#include "common/nearest_name.h"
#include "common/open_to_read.h"
#include "common/shallow_json.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "router/request/grammar_check.h"
#include "router/request/sampling_limits.h"
#include "router/request/seen_chats.h"
#include "text/gguf_tokenizer.h"

namespace baton::router {
namespace {
namespace fs = std::filesystem;

absl::StatusOr<std::string> ReadFile(const std::string& path, std::string_view flag) {
  BATON_ASSIGN_OR_RETURN(std::ifstream in, OpenToRead(path, flag));
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

// Null is absent. Anything else must be a number that T holds.
template <class T>
absl::Status Read(const nlohmann::json& json, std::string_view key, std::optional<T>& out) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return absl::OkStatus();
  const double value = found->is_number() ? found->get<double>() : NAN;
  const bool fits = std::is_floating_point_v<T>
                        ? std::abs(value) <= std::numeric_limits<float>::max()
                        : value == std::floor(value) && std::abs(value) <= std::numeric_limits<int32_t>::max();
  if (!fits) return absl::InvalidArgumentError(StrCat(key, " is ", Printable(found->dump())));
  out = static_cast<T>(value);
  return absl::OkStatus();
}

template <class Member>
constexpr bool kIsOptionalNumber = false;
template <class T>
constexpr bool kIsOptionalNumber<std::optional<T>&> = true;

absl::Status ReadDefaults(const nlohmann::json& json, SamplingOptions& out) {
  // transformers' do_sample=false means greedy, but its temperature is what vLLM's users expect to apply: read both.
  absl::Status read;
  VisitSampling([&](auto member, const SamplingField& field) {
    if constexpr (kIsOptionalNumber<decltype(out.*member)>) {
      if (read.ok() && !field.config_name.empty()) read = Read(json, field.config_name, out.*member);
    }
  });
  BATON_RETURN_IF_ERROR(read);
  if (const auto error = CheckSamplingNumbers(out)) return absl::InvalidArgumentError(error->message);
  if (out.max_tokens && *out.max_tokens < 1)
    return absl::InvalidArgumentError(StrCat("max_new_tokens is ", *out.max_tokens));
  return absl::OkStatus();
}

absl::Status ReadGenerationConfig(const std::string& path, SamplingOptions& out) {
  BATON_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, "--generation-config"));
  const nlohmann::json json = ShallowJson(text);
  if (!json.is_object()) return absl::InvalidArgumentError(StrCat(path, ": not a JSON object"));
  absl::Status status = ReadDefaults(json, out);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      StrCat(path, ": ", status.message(), " (--generation-config vllm takes neutral defaults instead)"));
}

TemplateTokens TokensOf(const Tokenizer& t) { return TemplateTokens{t.bos_token(), t.eos_token(), t.pad_token(), ""}; }

// "" where the object is empty.
absl::StatusOr<std::string> TemplateDefaults(const std::string& given) {
  if (given.empty()) return given;
  const nlohmann::json json = ShallowJson(given);
  if (!json.is_object())
    return absl::InvalidArgumentError(
        StrCat("--default-chat-template-kwargs: ", Printable(given), " is no JSON object"));
  return json.empty() ? "" : json.dump();
}

// Of --chat-template: a file, or the text itself, as vLLM takes both.
absl::StatusOr<std::unique_ptr<ChatTemplate>> ReadTemplate(const std::string& given, const Tokenizer& tokenizer) {
  std::error_code ignored;
  const bool is_text = given.find_first_of("{}\n") != std::string::npos && !fs::exists(given, ignored);
  std::string source = given;
  if (!is_text) {
    BATON_ASSIGN_OR_RETURN(source, ReadFile(given, "--chat-template"));
  }
  auto made = ChatTemplate::Create(source, TokensOf(tokenizer));
  if (made.ok()) return made;
  return absl::Status(made.status().code(),
                      StrCat("--chat-template ", Printable(given, 200), ": ", made.status().message()));
}

template <class T>
std::unique_ptr<const T> Const(std::unique_ptr<T> p) {
  return std::unique_ptr<const T>(std::move(p));
}

/// 0 where a tokenizer has one token for a word that it does not know, however long.
size_t LongestToken(const Tokenizer& tokenizer) {
  if (tokenizer.assembly() == TextAssembly::kWhole) return 0;
  size_t longest = 1;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    longest = std::max({longest, tokenizer.TokenBytes(id).size(), tokenizer.IdToToken(id).size()});
  return longest;
}

absl::Status LoadGguf(const std::string& path, ModelText& model) {
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  BATON_ASSIGN_OR_RETURN(const GgufTokenizerMetadata metadata, GgufTokenizerMetadata::Read(*file));
  BATON_ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::FromGguf(metadata));
  auto own = ChatTemplate::FromGguf(metadata, TokensOf(*tokenizer));
  if (own.ok()) {
    model.chat_template = Const(*std::move(own));
  } else if (own.status().code() != absl::StatusCode::kNotFound) {
    return own.status();
  }
  model.tokenizer = Const(std::move(tokenizer));
  return absl::OkStatus();
}

absl::Status LoadDirectory(const std::string& path, ModelText& model) {
  BATON_ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::FromHfDirectory(path));
  auto own = ChatTemplate::FromHfDirectory(path);
  if (own.ok()) {
    model.chat_template = Const(*std::move(own));
  } else if (own.status().code() != absl::StatusCode::kNotFound) {
    return own.status();
  }
  model.tokenizer = Const(std::move(tokenizer));
  return absl::OkStatus();
}

/// The model's own, or those of the folder that was named, and what is said over them.
absl::Status LoadDefaults(const std::string& path, bool use_own, const TextFiles& elsewhere,
                          SamplingOptions& defaults) {
  const bool named = !elsewhere.generation_config.empty();
  const std::string config = StrCat(named ? elsewhere.generation_config : path, "/generation_config.json");
  if (named && !fs::exists(config))
    return absl::NotFoundError(StrCat("--generation-config ", elsewhere.generation_config, ": there is no ", config));
  if ((named || use_own) && fs::exists(config)) BATON_RETURN_IF_ERROR(ReadGenerationConfig(config, defaults));
  if (elsewhere.override_generation_config.empty()) return absl::OkStatus();
  const auto wrong = [](const std::string& what) {
    return absl::InvalidArgumentError(StrCat("--override-generation-config: ", what));
  };
  const nlohmann::json over = nlohmann::json::parse(elsewhere.override_generation_config, nullptr, false);
  if (!over.is_object()) return wrong(StrCat(Printable(elsewhere.override_generation_config), " is no JSON object"));
  std::vector<std::string> names;
  VisitSampling([&](auto, const SamplingField& field) {
    if (!field.config_name.empty()) names.emplace_back(field.config_name);
  });
  for (const auto& [key, value] : over.items()) {
    if (std::ranges::find(names, key) == names.end())
      return wrong(StrCat("\"", Printable(key), "\" is no key that counts", DidYouMean(key, names, "")));
  }
  const absl::Status read = ReadDefaults(over, defaults);
  return read.ok() ? read : wrong(std::string(read.message()));
}

}  // namespace

absl::StatusOr<ModelText> ModelText::Load(const std::string& path, const std::string& chat_template,
                                          bool use_generation_config, size_t token_cache_bytes,
                                          const TextFiles& elsewhere) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return absl::NotFoundError(StrCat("model ", path, " does not exist (--model)"));
  ModelText model;
  fs::path clean = fs::path(path).lexically_normal();
  if (!clean.has_filename()) clean = clean.parent_path();
  const bool gguf = !fs::is_directory(path, ignored);
  model.name = gguf ? clean.stem().string() : clean.filename().string();
  const std::string& text_path = elsewhere.tokenizer.empty() ? path : elsewhere.tokenizer;
  if (!fs::exists(text_path, ignored))
    return absl::NotFoundError(StrCat("tokenizer ", text_path, " does not exist (--tokenizer)"));
  if (elsewhere.no_tokenizer) {
    model.tokenizer = Const(Tokenizer::None());
  } else {
    BATON_RETURN_IF_ERROR(fs::is_directory(text_path, ignored) ? LoadDirectory(text_path, model)
                                                               : LoadGguf(text_path, model));
  }
  BATON_RETURN_IF_ERROR(LoadDefaults(elsewhere.config.empty() ? path : elsewhere.config, use_generation_config,
                                     elsewhere, model.defaults));
  if (!chat_template.empty()) {
    BATON_ASSIGN_OR_RETURN(auto given, ReadTemplate(chat_template, *model.tokenizer));
    model.chat_template = Const(std::move(given));
  }
  BATON_ASSIGN_OR_RETURN(model.template_defaults, TemplateDefaults(elsewhere.default_chat_template_kwargs));
  if (model.chat_template) model.call_form = CallFormOf(model.chat_template->source());
  model.eos_token_ids = model.tokenizer->eos_ids();
  model.grammars = std::make_shared<GrammarCheck>(*model.tokenizer);
  model.longest_token = LongestToken(*model.tokenizer);
  const size_t for_chats = token_cache_bytes / 4;
  model.prompt_ids = std::make_unique<TokenCache>(*model.tokenizer, token_cache_bytes - for_chats);
  model.seen_chats = std::make_shared<SeenChats>(for_chats);
  return model;
}

SamplingOptions ResolveSampling(const SamplingOptions& request, const SamplingOptions& defaults) {
  SamplingOptions out = request;
  VisitSampling([&](auto member, const SamplingField& field) {
    if constexpr (kIsOptionalNumber<decltype(out.*member)>) {
      using T = typename std::remove_reference_t<decltype(out.*member)>::value_type;
      if (!(out.*member) && field.neutral) out.*member = (defaults.*member).value_or(static_cast<T>(*field.neutral));
    }
  });
  if (*out.top_k < 0) out.top_k = 0;  // -1 is vLLM's way to say all
  return out;
}

}  // namespace baton::router
