// What a server's flags are, in words: where each value came from (`baton config explain`), which flags a topic has
// (`baton help COMMAND WORD`), and the reference page of all of them. No I/O but the printing of Explain.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/flag_set.h"

namespace baton::cli {

/// "what  value  from" of every flag, and of values that were given and did not win. Keys are not shown.
std::string ExplainText(const FlagSet& set);
/// Prints that, and the first fault of a value as the process would; the exit code.
int Explain(const FlagSet& set);

/// docs/reference.md: every flag of the servers, with variable, default and what it may be.
std::string ReferencePage();

}  // namespace baton::cli
