// Thoughts: what a model writes between <think> and </think> before its answer. They are split from the answer's text,
// counted, and can be bounded. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>

#include "text/grammar_kind.h"
#include "text/tokenizer.h"

namespace baton::router {

/// Where an answer begins.
enum class ThoughtStart : uint8_t {
  kNone,     ///< nothing in it is a thought
  kMayOpen,  ///< in the answer, which may begin with <think>
  kOpen,     ///< in thoughts: the prompt ends with <think>, or the model leaves the tag out
  kClosed,   ///< behind thoughts: the prompt ends with </think>. A model that opens others is read as with kMayOpen
};

/// What --reasoning-parser may be.
enum class ThoughtForm : uint8_t { kNone, kTagged, kUntagged };

/// Whether a chat template knows thoughts.
bool ShowsThoughts(std::string_view template_source);

/// Of an answer to `prompt`. kUntagged models begin in thoughts unless the prompt has closed them.
ThoughtStart ThoughtStartOf(ThoughtForm form, const Tokenizer& tokenizer, absl::Span<const int32_t> prompt);

/// Whether the tags are special tokens of this tokenizer, which text without those would lack.
bool ThoughtTagsAreSpecial(const Tokenizer& tokenizer);

/// Takes the thoughts out of one choice's text, piece by piece. White space around them is neither.
class ThoughtReader {
 public:
  explicit ThoughtReader(ThoughtStart start);

  struct Piece {
    std::string thoughts, text;
  };
  Piece Append(std::string_view text);
  /// The end of the text.
  Piece Finish();
  /// In thoughts.
  bool thinking() const { return place_ == Place::kInside || place_ == Place::kOpened || place_ == Place::kBeginning; }
  /// What came so far is thrown away or text, which is seen later.
  bool undecided() const { return place_ == Place::kBefore; }

 private:
  enum class Place : uint8_t { kBefore, kBeginning, kOpened, kInside, kBehind, kText };
  bool Step(Piece& piece);

  Place place_;
  std::string held_;
};

/// Lark for every token of the tokenizer but those that end a text, and but these.
std::string AllTokensBut(const Tokenizer& tokenizer, std::set<int32_t> left_out);

/// A grammar for a whole answer that begins with thoughts of at most `budget` tokens (nothing: of any number) and goes
/// on as `answer` wants it (null: anyhow). An error is what this cannot be done with.
std::variant<Grammar, std::string> AfterThoughts(const Grammar* answer, ThoughtStart start,
                                                 std::optional<int32_t> budget, const Tokenizer& tokenizer);

}  // namespace baton::router
