// What a grammar's text is, as far as that is seen before it is compiled.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "text/grammar_kind.h"

namespace baton {

/// InvalidArgument says what is wrong, as GrammarCompiler::Compile would say it. OK: nothing that costs little to find;
/// of Lark nothing is looked for. Some 0.05 ms a KB. Any thread.
absl::Status CheckForm(const Grammar& grammar);

/// The Lark rules of a grammar of kind kLark, GBNF too, for a place in another: it begins with the rule `name`. None of
/// its other rules is called so. InvalidArgument: it is no GBNF, or says what only a whole grammar can. Any thread.
absl::StatusOr<std::string> RulesBegunBy(const std::string& name, const std::string& text);

/// As much white space as an answer has between the parts of a JSON text: a regular expression. Any thread.
std::string_view JsonSpace();

/// InvalidArgument: `pattern`, which a client wants in its place, is no regular expression of white space, or not of
/// one that may be left out. Any thread.
absl::Status CheckJsonSpace(std::string_view pattern);

}  // namespace baton
