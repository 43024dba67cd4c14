// Grammars that an answer must follow: which tokens may come next. llguidance does the work (text/rust/src/grammar.rs).
//
// A GrammarCompiler is made once for a model's tokenizer (about 0.1 s for 50,000 tokens); a GrammarMatcher follows one
// answer. The same grammar and tokens give the same mask on every machine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "text/grammar_kind.h"
#include "text/tokenizer.h"

struct bt_vocabulary;
struct bt_matcher;

namespace baton {

/// Follows one answer. One thread at a time.
class GrammarMatcher {
 public:
  ~GrammarMatcher();
  GrammarMatcher(const GrammarMatcher&) = delete;
  GrammarMatcher& operator=(const GrammarMatcher&) = delete;

  /// Another one that goes on from here on its own.
  absl::StatusOr<std::unique_ptr<GrammarMatcher>> Copy() const;

  /// Moves on over `tokens`. FailedPrecondition: the grammar does not allow one of them (the text says which), and the
  /// matcher stands before it. InvalidArgument: the grammar is too costly here.
  absl::Status Consume(absl::Span<const int32_t> tokens);

  /// mask: [ceil(vocab / 32)] bit = the token may come next. Behind the grammar's end these are the tokens that end a
  /// text; none: nothing can follow, and the text is not at an end. InvalidArgument: this mask, or all so far, takes
  /// more work than a grammar may.
  absl::Status Mask(absl::Span<uint32_t> mask);

  /// The answer may end here.
  bool MayEnd() const;
  /// Nothing but the end of the text can follow.
  bool HasEnded() const;

  /// What it has done since it was compiled, in units of 0.05 to 0.15 us of a core: the same for the same tokens,
  /// whoever follows them. Beyond kMostWork the grammar is too costly.
  uint64_t Work() const;
  static constexpr uint64_t kMostWork = 6'400'000;

 private:
  friend class GrammarCompiler;
  explicit GrammarMatcher(bt_matcher* handle) : handle_(handle) {}

  bt_matcher* handle_;  // owned
};

/// Immutable; every method may be called from any thread.
class GrammarCompiler {
 public:
  /// `vocab_size`: ids that the model scores; `eos_ids`: those that end a text. InvalidArgument: a tokenizer whose
  /// tokens are no bytes of the text (TextAssembly::kWhole), or no eos_ids.
  static absl::StatusOr<std::unique_ptr<GrammarCompiler>> Make(const Tokenizer& tokenizer,
                                                               absl::Span<const int32_t> eos_ids, int32_t vocab_size);
  ~GrammarCompiler();
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  /// InvalidArgument says what is wrong with the grammar: the place in a schema of a keyword that is not supported, the
  /// line of a Lark grammar. Some 0.1 to 50 ms: not on an io thread.
  absl::StatusOr<std::unique_ptr<GrammarMatcher>> Compile(GrammarKind kind, std::string_view text) const;

  int32_t vocab_size() const { return vocab_size_; }
  /// Hex. Equal digests: the same grammars compile, to the same masks of the ids that the tokenizer has.
  const std::string& digest() const { return digest_; }

 private:
  GrammarCompiler(bt_vocabulary* handle, int32_t vocab_size, std::string digest)
      : handle_(handle), vocab_size_(vocab_size), digest_(std::move(digest)) {}

  bt_vocabulary* handle_;  // owned
  const int32_t vocab_size_;
  const std::string digest_;
};

}  // namespace baton
