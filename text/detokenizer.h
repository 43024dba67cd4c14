// Detokenizer: token ids to text, a token at a time. Pure: no clock, no thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace baton {

/// Where the text of the tokens stands.
enum class DetokenizeFrom : uint8_t {
  kTextStart,  ///< they are a text of their own: the increments add up to Tokenizer::Decode(ids)
  kPrompt,     ///< they continue a prompt: a leading space of SentencePiece is text and stays
};

/// One per sequence; not thread-safe. Tokens outside the vocabulary add nothing. The concatenation of Append() and
/// Finish() is independent of how ids are grouped; every increment is valid UTF-8, so a code point that spans
/// tokens is held until it is complete.
class Detokenizer {
 public:
  /// The tokenizer must outlive this.
  Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens, DetokenizeFrom from);

  /// Takes the next token and returns the text that is now certain, often "" or one word.
  std::string Append(int32_t id);
  /// The end of the sequence: what was held comes out as U+FFFD. Append must not follow.
  std::string Finish();

 private:
  std::string ShowWhole(bool last);

  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  TextStart start_;           // what is still to be stripped
  std::string held_;          // kByteLevel, kByteTokens: an incomplete code point, at most 3 bytes
  std::vector<int32_t> ids_;  // kWhole: every token so far; the last ones are decoded again with each new one
  size_t context_ = 0;        // kWhole: where decoding starts
  size_t shown_ = 0;          // kWhole: the text of ids before this one is out
};

}  // namespace baton
