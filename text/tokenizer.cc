#include "text/tokenizer.h"

#include <algorithm>
#include <filesystem>

#include "common/check.h"
#include "common/gguf.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "text/detokenizer.h"
#include "text/gguf_tokenizer.h"
#include "text/rust_call.h"

namespace baton {

Tokenizer::Tokenizer(bt_tokenizer* handle) : handle_(handle) {
  const bt_table table = bt_tokenizer_table(handle);
  token_bytes_ = {table.bytes, table.byte_ends};
  token_names_ = {table.names, table.name_ends};
  special_ = table.special;
  begins_piece_ = table.begins_piece;
  vocab_size_ = static_cast<int32_t>(table.count);
  assembly_ = static_cast<TextAssembly>(table.assembly);
  text_start_ = static_cast<TextStart>(table.text_start);
}

Tokenizer::~Tokenizer() {
  if (handle_ != nullptr) bt_tokenizer_free(handle_);
}

std::unique_ptr<Tokenizer> Tokenizer::None() { return std::unique_ptr<Tokenizer>(new Tokenizer()); }

void Tokenizer::SetSpecialTokens(SpecialTokens tokens, const std::vector<int64_t>& more_eos) {
  bos_id_ = TokenToId(tokens.bos);
  pad_id_ = TokenToId(tokens.pad);
  if (const std::optional<int32_t> eos = TokenToId(tokens.eos)) eos_ids_.push_back(*eos);
  for (int64_t id : more_eos) {
    const bool known = std::find(eos_ids_.begin(), eos_ids_.end(), id) != eos_ids_.end();
    if (id >= 0 && id < vocab_size_ && !known) eos_ids_.push_back(static_cast<int32_t>(id));
  }
  const absl::StatusOr<std::vector<int32_t>> of_nothing = Encode("", /*add_special_tokens=*/true);
  puts_bos_ = bos_id_ && of_nothing.ok() && !of_nothing->empty() && of_nothing->front() == *bos_id_;
  bos_token_ = std::move(tokens.bos);
  eos_token_ = std::move(tokens.eos);
  pad_token_ = std::move(tokens.pad);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const GgufTokenizerMetadata& metadata) {
  const auto token = [&](std::optional<int64_t> id) {
    const bool known = id && *id >= 0 && *id < std::ssize(metadata.tokens);
    return std::string(known ? metadata.tokens[static_cast<size_t>(*id)] : std::string_view());
  };
  const auto views = [](const std::vector<std::string_view>& texts) {
    std::vector<bt_str> out;
    out.reserve(texts.size());
    for (std::string_view text : texts) out.push_back(BtStr(text));
    return out;
  };
  const auto flag = [](std::optional<bool> value) { return value ? int32_t{*value} : -1; };
  const SpecialTokens special{token(metadata.bos_id), token(metadata.eos_id), token(metadata.pad_id)};
  const std::vector<bt_str> tokens = views(metadata.tokens);
  const std::vector<bt_str> merges = views(metadata.merges);
  const bt_gguf gguf{
      .model = BtStr(metadata.model),
      .pre = BtStr(metadata.pre),
      .tokens = tokens.data(),
      .token_count = tokens.size(),
      .scores = metadata.scores.empty() ? nullptr : metadata.scores.data(),
      .types = metadata.token_types.empty() ? nullptr : metadata.token_types.data(),
      .merges = merges.data(),
      .merge_count = merges.size(),
      .charsmap = {reinterpret_cast<const char*>(metadata.normalizer.data()), metadata.normalizer.size()},
      .unk_id = metadata.unk_id.value_or(-1),
      .add_space_prefix = metadata.add_space_prefix.value_or(true),
      .remove_extra_whitespaces = metadata.remove_extra_whitespaces.value_or(true),
      .affixes = {flag(metadata.add_bos), flag(metadata.add_eos), BtStr(special.bos), BtStr(special.eos)},
  };
  bt_error error{};
  bt_tokenizer* handle = bt_tokenizer_from_gguf(&gguf, &error);
  BATON_RETURN_IF_ERROR(TakeFileError(error, "GGUF tokenizer: "));
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer(handle));
  std::vector<int64_t> more_eos;
  for (const std::optional<int64_t>& id : {metadata.eos_id, metadata.eot_id, metadata.eom_id}) {
    if (id) more_eos.push_back(*id);
  }
  tokenizer->SetSpecialTokens(special, more_eos);
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::OfModel(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return FromHfDirectory(path);
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  BATON_ASSIGN_OR_RETURN(const GgufTokenizerMetadata metadata, GgufTokenizerMetadata::Read(*file));
  return FromGguf(metadata);
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, bool add_special_tokens,
                                                       bool parse_special, size_t piece_bytes) const {
  if (!exists()) return absl::FailedPreconditionError("there is no tokenizer (--skip-tokenizer-init)");
  bt_error error{};
  const bt_ids ids = bt_tokenizer_encode(handle_, BtStr(text), add_special_tokens, parse_special, piece_bytes, &error);
  BATON_RETURN_IF_ERROR(TakeError(error, ""));
  std::vector<int32_t> out(ids.ptr, ids.ptr + ids.len);
  bt_ids_free(ids);
  const bool twice = add_special_tokens && puts_bos_ && out.size() >= 2 && out[0] == *bos_id_ && out[1] == *bos_id_;
  if (twice) out.erase(out.begin());
  return out;
}

std::string Tokenizer::Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const {
  if (assembly_ == TextAssembly::kWhole) {
    std::vector<int32_t> kept;
    for (int32_t id : ids) {
      if (Has(id) && !(skip_special_tokens && IsSpecial(id))) kept.push_back(id);
    }
    return DecodeWhole(kept);
  }
  Detokenizer detokenizer(*this, skip_special_tokens, DetokenizeFrom::kTextStart);
  std::string text;
  for (int32_t id : ids) text += detokenizer.Append(id);
  return text + detokenizer.Finish();
}

std::string Tokenizer::DecodeWhole(absl::Span<const int32_t> ids) const {
  if (ids.empty()) return "";
  bt_error error{};
  const bt_buf text = bt_tokenizer_decode(handle_, ids.data(), ids.size(), &error);
  const absl::Status status = TakeError(error, "");
  BATON_CHECK(status.ok(), std::string(status.message()));  // ids are in the vocabulary: only a bug can fail here
  return TakeBuf(text);
}

std::optional<int32_t> Tokenizer::TokenToId(std::string_view token) const {
  if (token.empty() || !exists()) return std::nullopt;
  const int64_t id = bt_tokenizer_token_to_id(handle_, BtStr(token));
  if (id < 0 || id >= vocab_size_) return std::nullopt;
  return static_cast<int32_t>(id);
}

}  // namespace baton
