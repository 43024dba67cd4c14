#include "text/grammar.h"

#include "common/status.h"
#include "common/str_cat.h"
#include "text/rust_call.h"

namespace baton {

GrammarMatcher::~GrammarMatcher() { bt_matcher_free(handle_); }

absl::StatusOr<std::unique_ptr<GrammarMatcher>> GrammarMatcher::Copy() const {
  bt_error error{};
  bt_matcher* copy = bt_matcher_copy(handle_, &error);
  BATON_RETURN_IF_ERROR(TakeError(error, ""));
  return std::unique_ptr<GrammarMatcher>(new GrammarMatcher(copy));
}

absl::Status GrammarMatcher::Consume(absl::Span<const int32_t> tokens) {
  bt_error error{};
  const size_t taken = bt_matcher_consume(handle_, tokens.data(), tokens.size(), &error);
  BATON_RETURN_IF_ERROR(TakeError(error, ""));
  if (taken == tokens.size()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      StrCat("the grammar does not allow token ", tokens[taken], ", the one at ", taken, " of ", tokens.size()));
}

absl::Status GrammarMatcher::Mask(absl::Span<uint32_t> mask) {
  bt_error error{};
  bt_matcher_mask(handle_, mask.data(), mask.size(), &error);
  return TakeError(error, "");
}

bool GrammarMatcher::MayEnd() const { return bt_matcher_may_end(handle_) != 0; }
bool GrammarMatcher::HasEnded() const { return bt_matcher_has_ended(handle_) != 0; }

absl::StatusOr<std::unique_ptr<GrammarCompiler>> GrammarCompiler::Make(const Tokenizer& tokenizer,
                                                                       absl::Span<const int32_t> eos_ids,
                                                                       int32_t vocab_size) {
  bt_error error{};
  bt_vocabulary* handle =
      bt_vocabulary_new(tokenizer.handle_, eos_ids.data(), eos_ids.size(), static_cast<size_t>(vocab_size), &error);
  BATON_RETURN_IF_ERROR(TakeError(error, ""));
  return std::unique_ptr<GrammarCompiler>(new GrammarCompiler(handle, vocab_size));
}

GrammarCompiler::~GrammarCompiler() { bt_vocabulary_free(handle_); }

absl::StatusOr<std::unique_ptr<GrammarMatcher>> GrammarCompiler::Compile(GrammarKind kind,
                                                                         std::string_view text) const {
  bt_error error{};
  bt_matcher* matcher = bt_matcher_new(handle_, static_cast<int32_t>(kind), BtStr(text), &error);
  BATON_RETURN_IF_ERROR(TakeFileError(error, ""));
  return std::unique_ptr<GrammarMatcher>(new GrammarMatcher(matcher));
}

}  // namespace baton
