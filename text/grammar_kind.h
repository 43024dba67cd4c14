// What every token of an answer must fit, as plain values for both sides of the wire.
#pragma once

#include <cstdint>
#include <string>

namespace baton {

/// How a grammar is written. The numbers are those of the C ABI and of the wire (proto Grammar.Kind).
enum class GrammarKind : uint8_t {
  kJsonSchema = 1,  ///< a JSON Schema (draft 2020-12, as far as llguidance goes)
  kRegex = 2,       ///< a regular expression that the whole answer matches
  kLark = 3,        ///< llguidance's dialect of Lark, from the rule `start`; or GBNF, from `root`
  kChoice = 4,      ///< a JSON array of strings, one of which is the answer
};

/// text/grammar.h compiles it.
struct Grammar {
  GrammarKind kind = GrammarKind::kJsonSchema;
  std::string text;
};

}  // namespace baton
