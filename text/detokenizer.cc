#include "text/detokenizer.h"

#include "absl/types/span.h"
#include "common/utf8.h"

namespace baton {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

Utf8Repair RepairOf(const Tokenizer& tokenizer) {
  return tokenizer.assembly() == TextAssembly::kByteTokens ? Utf8Repair::kEachByte : Utf8Repair::kMaximalPart;
}

}  // namespace

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens, DetokenizeFrom from)
    : tokenizer_(&tokenizer),
      skip_special_tokens_(skip_special_tokens),
      start_(from == DetokenizeFrom::kTextStart ? tokenizer.text_start() : TextStart::kKeep) {}

std::string Detokenizer::Append(int32_t id) {
  if (id < 0 || id >= tokenizer_->vocab_size()) return "";
  if (skip_special_tokens_ && tokenizer_->IsSpecial(id)) return "";
  if (tokenizer_->assembly() == TextAssembly::kWhole) {
    ids_.push_back(id);
    return ShowWhole(/*last=*/false);
  }
  std::string_view bytes = tokenizer_->TokenBytes(id);
  if (bytes.empty()) return "";
  if (start_ == TextStart::kStripFirst) {
    bytes.remove_prefix(std::min(bytes.find_first_not_of(' '), bytes.size()));
  } else if (start_ == TextStart::kStripSpace && bytes.front() == ' ') {
    bytes.remove_prefix(1);
  }
  start_ = TextStart::kKeep;
  std::string out;
  AppendUtf8(bytes, RepairOf(*tokenizer_), held_, out);
  return out;
}

// The decoder's text for a token can depend on the one before it and on being the last, so the tokens since `context_`
// are decoded with and without the new ones, and the difference is what the new ones add.
std::string Detokenizer::ShowWhole(bool last) {
  const absl::Span<const int32_t> ids = absl::MakeConstSpan(ids_);
  const std::string before = tokenizer_->DecodeWhole(ids.subspan(context_, shown_ - context_));
  const std::string now = tokenizer_->DecodeWhole(ids.subspan(context_));
  const bool incomplete = now.size() >= kReplacement.size() && now.ends_with(kReplacement);
  if (now.size() <= before.size() || (incomplete && !last)) return "";
  // A byte that makes no character of those before it makes none of what was shown, either: then it stands alone.
  std::string more = now.starts_with(before) ? now.substr(before.size()) : tokenizer_->DecodeWhole(ids.subspan(shown_));
  context_ = shown_;
  shown_ = ids_.size();
  return more;
}

std::string Detokenizer::Finish() {
  if (tokenizer_->assembly() == TextAssembly::kWhole) return ids_.size() > shown_ ? ShowWhole(/*last=*/true) : "";
  std::string out;
  FlushUtf8(RepairOf(*tokenizer_), held_, out);
  return out;
}

}  // namespace baton
