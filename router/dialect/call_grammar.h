// What holds the calls that a model makes by itself to the schemas of strict functions. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "router/dialect/call_form.h"
#include "text/tokenizer.h"

namespace baton::router {

/// Lark for text that may have calls of these functions, whose arguments fit where they are strict. Everything that a
/// ToolCallReader takes for a call is one of it. "": no function is strict. InvalidArgument: a schema that this form
/// cannot follow.
absl::StatusOr<std::string> FreeCallGrammar(const CallForm& form, const std::vector<Callable>& functions,
                                            const Tokenizer& tokenizer);

}  // namespace baton::router
