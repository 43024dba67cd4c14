#include "text/gguf_tokenizer.h"

#include <algorithm>
#include <limits>

#include "common/gguf.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton {
namespace {

/// Turns "the key is not there" into nullopt; other errors stay.
template <typename T>
absl::StatusOr<std::optional<T>> Optional(absl::StatusOr<T> value) {
  if (value.ok()) return std::optional<T>(*std::move(value));
  if (value.status().code() == absl::StatusCode::kNotFound) return std::optional<T>();
  return value.status();
}

absl::Status CheckLength(const GgufFile& file, std::string_view key, size_t length, size_t tokens) {
  if (length == 0 || length == tokens) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat(file.name(), ": ", key, " has ", length, " entries for ", tokens, " tokens"));
}

absl::Status ReadTokens(const GgufFile& file, GgufTokenizerMetadata& out) {
  BATON_ASSIGN_OR_RETURN(const auto tokens, file.GetStrings("tokenizer.ggml.tokens"));
  if (tokens.empty()) return absl::InvalidArgumentError(StrCat(file.name(), ": tokenizer.ggml.tokens is empty"));
  out.tokens.assign(tokens.begin(), tokens.end());
  if (file.Find("tokenizer.ggml.scores") != nullptr) {
    BATON_ASSIGN_OR_RETURN(out.scores, file.GetFloats("tokenizer.ggml.scores"));
  }
  if (file.Find("tokenizer.ggml.merges") != nullptr) {
    BATON_ASSIGN_OR_RETURN(const auto merges, file.GetStrings("tokenizer.ggml.merges"));
    out.merges.assign(merges.begin(), merges.end());
  }
  if (file.Find("tokenizer.ggml.token_type") != nullptr) {
    BATON_ASSIGN_OR_RETURN(const auto types, file.GetInts("tokenizer.ggml.token_type"));
    for (int64_t type : types) out.token_types.push_back(static_cast<int32_t>(std::clamp<int64_t>(type, 0, 255)));
  }
  BATON_RETURN_IF_ERROR(CheckLength(file, "tokenizer.ggml.scores", out.scores.size(), tokens.size()));
  return CheckLength(file, "tokenizer.ggml.token_type", out.token_types.size(), tokens.size());
}

absl::Status ReadIds(const GgufFile& file, GgufTokenizerMetadata& out) {
  const std::pair<std::string_view, std::optional<int64_t>*> ids[] = {
      {"tokenizer.ggml.bos_token_id", &out.bos_id},     {"tokenizer.ggml.eos_token_id", &out.eos_id},
      {"tokenizer.ggml.eot_token_id", &out.eot_id},     {"tokenizer.ggml.eom_token_id", &out.eom_id},
      {"tokenizer.ggml.unknown_token_id", &out.unk_id}, {"tokenizer.ggml.padding_token_id", &out.pad_id},
  };
  for (const auto& [key, id] : ids) {
    BATON_ASSIGN_OR_RETURN(*id, Optional(file.GetInt(key)));
    if (*id && **id == std::numeric_limits<uint32_t>::max()) id->reset();  // how writers say "none"
    if (*id && (**id < 0 || **id >= std::ssize(out.tokens))) {
      return absl::InvalidArgumentError(
          StrCat(file.name(), ": ", key, " is ", **id, ", there are ", out.tokens.size(), " tokens"));
    }
  }
  const std::pair<std::string_view, std::optional<bool>*> flags[] = {
      {"tokenizer.ggml.add_bos_token", &out.add_bos},
      {"tokenizer.ggml.add_eos_token", &out.add_eos},
      {"tokenizer.ggml.add_space_prefix", &out.add_space_prefix},
      {"tokenizer.ggml.remove_extra_whitespaces", &out.remove_extra_whitespaces},
  };
  for (const auto& [key, flag] : flags) {
    BATON_ASSIGN_OR_RETURN(*flag, Optional(file.GetBool(key)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GgufTokenizerMetadata> GgufTokenizerMetadata::Read(const GgufFile& file) {
  GgufTokenizerMetadata out;
  BATON_ASSIGN_OR_RETURN(const std::string_view model, file.GetString("tokenizer.ggml.model"));
  out.model = model;
  const std::pair<std::string_view, std::string*> texts[] = {
      {"tokenizer.ggml.pre", &out.pre},
      {"tokenizer.chat_template", &out.chat_template},
  };
  for (const auto& [key, text] : texts) {
    BATON_ASSIGN_OR_RETURN(const auto value, Optional(file.GetString(key)));
    *text = value.value_or("");
  }
  BATON_RETURN_IF_ERROR(ReadTokens(file, out));
  BATON_RETURN_IF_ERROR(ReadIds(file, out));
  constexpr std::string_view kCharsMap = "tokenizer.ggml.precompiled_charsmap";
  if (file.Find(kCharsMap) != nullptr) {
    BATON_ASSIGN_OR_RETURN(const auto bytes, file.GetInts(kCharsMap));
    for (int64_t byte : bytes) out.normalizer.push_back(static_cast<uint8_t>(byte));
  }
  return out;
}

}  // namespace baton
