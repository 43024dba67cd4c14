// Reads the texts in which models write calls of functions. Each takes the whole of one text or nothing of it. Pure.
#pragma once

#include <string_view>

#include "router/dialect/call_form.h"

namespace baton::router {

/// {"name": "f", "arguments": {…}}; the arguments may be called "parameters", or be the text of an object.
WrittenCalls ReadJsonCall(std::string_view text);
/// One of these or several, with white space, commas or semicolons between them.
WrittenCalls ReadJsonCalls(std::string_view text);
/// A JSON array of these, or f{…}, f[ARGS]{…}, f[CALL_ID]x[ARGS]{…}.
WrittenCalls ReadMistralCalls(std::string_view text);
/// [f(a=1, b='x'), g()]
WrittenCalls ReadPythonCalls(std::string_view text);
/// call:f{a:1,b:<escape>x<escape>}, or with <|"|> around texts.
WrittenCalls ReadGemmaCalls(std::string_view text);

}  // namespace baton::router
