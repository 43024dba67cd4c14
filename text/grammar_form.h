// What is wrong with a grammar's text, as far as that is seen before it is compiled.
#pragma once

#include "absl/status/status.h"
#include "text/grammar_kind.h"

namespace baton {

/// InvalidArgument says what is wrong, as GrammarCompiler::Compile would say it. OK: nothing that costs little to find;
/// of Lark nothing is looked for. Some 0.05 ms a KB. Any thread.
absl::Status CheckForm(const Grammar& grammar);

}  // namespace baton
