// How a grammar is written.
#pragma once

#include <cstdint>

namespace baton {

/// The numbers are those of the C ABI and of the wire.
enum class GrammarKind : uint8_t {
  kJsonSchema = 0,  ///< a JSON Schema (draft 2020-12, as far as llguidance goes)
  kRegex = 1,       ///< a regular expression that the whole answer matches
  kLark = 2,        ///< llguidance's dialect of Lark, from the rule `start`
  kChoice = 3,      ///< a JSON array of strings, one of which is the answer
};

}  // namespace baton
