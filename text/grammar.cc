#include "text/grammar.h"

#include <xxhash.h>

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "text/rust_call.h"

namespace baton {
namespace {

/// What a grammar sees: the bytes of every token, which are special, and which end a text.
std::string DigestOf(const Tokenizer& tokenizer, absl::Span<const int32_t> eos_ids) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  XXH3_128bits_reset(state.get());
  const auto add = [&](std::string_view text) {  // its length before it: no two lists of texts hash alike
    const uint64_t size = text.size();
    XXH3_128bits_update(state.get(), &size, sizeof(size));
    XXH3_128bits_update(state.get(), text.data(), text.size());
  };
  add("baton grammar vocabulary 1");
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const bool special = tokenizer.IsSpecial(id);
    add(special ? "special" : "plain");
    add(special ? tokenizer.IdToToken(id) : tokenizer.TokenBytes(id));
  }
  std::vector<int32_t> eos(eos_ids.begin(), eos_ids.end());
  std::sort(eos.begin(), eos.end());
  for (const int32_t id : eos) add(StrCat(id));
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

}  // namespace

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
uint64_t GrammarMatcher::Work() const { return bt_matcher_work(handle_); }

absl::StatusOr<std::unique_ptr<GrammarCompiler>> GrammarCompiler::Make(const Tokenizer& tokenizer,
                                                                       absl::Span<const int32_t> eos_ids,
                                                                       int32_t vocab_size) {
  if (!tokenizer.exists()) return absl::FailedPreconditionError("there is no tokenizer (--skip-tokenizer-init)");
  bt_error error{};
  bt_vocabulary* handle =
      bt_vocabulary_new(tokenizer.handle_, eos_ids.data(), eos_ids.size(), static_cast<size_t>(vocab_size), &error);
  BATON_RETURN_IF_ERROR(TakeError(error, ""));
  return std::unique_ptr<GrammarCompiler>(new GrammarCompiler(handle, vocab_size, DigestOf(tokenizer, eos_ids)));
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
