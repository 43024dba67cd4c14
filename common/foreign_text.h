// Text that somebody else wrote (names in a model file, words of a peer), for a message of one line.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace baton {

/// `text` as it can be printed: at most `max_bytes` of it, cut at a code point and marked with how many bytes there
/// are. What is malformed, breaks the line, moves the cursor or turns the direction of writing is escaped (\n, \x1b,
/// \u202e); other UTF-8 stays, a backslash too.
std::string Printable(std::string_view text, size_t max_bytes = 80);

/// The same in double quotes, with quotes and backslashes of the text escaped.
std::string Quoted(std::string_view text, size_t max_bytes = 80);

}  // namespace baton
