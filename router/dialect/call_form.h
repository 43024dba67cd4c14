// How models write calls of functions in their text. Every family has a form of its own; --tool-call-parser names one,
// else the model's chat template says which it is. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace baton::router {

/// A call that a text holds.
struct WrittenCall {
  std::string name;
  std::string arguments;  ///< a JSON object
};
/// Nothing: the text is no calls.
using WrittenCalls = std::optional<std::vector<WrittenCall>>;

/// How a call itself is written (call_grammar.cc).
enum class CallWriting : uint8_t {
  kJson,     ///< {"name": "f", "arguments": {…}}
  kMistral,  ///< a list of these, or f{…}
  kPython,   ///< f(a=1)
  kGemma,    ///< call:f{a:1}
};

struct CallForm {
  std::string_view name;  ///< of --tool-call-parser
  std::string_view help;
  /// What stands before calls and behind them. No `open`: an answer is calls or text from its first character on. No
  /// `close`: calls go on to the next `open`, or to the end.
  std::string_view open, close;
  /// The calls in the text between the marks, or in the whole answer where there are none.
  WrittenCalls (*parse)(std::string_view text);
  /// Without `open`: what an answer that is calls begins with, perhaps behind `lead`.
  std::string_view first = {}, lead = {};
  CallWriting writing = CallWriting::kJson;
  /// What strings in a call begin and end with, the form's own first: a mark between these is none.
  std::vector<std::string_view> quotes = {"\""};
  bool short_ids = false;  ///< chat templates want ids of 9 letters and digits
};

/// A function that an answer may call.
struct Callable {
  std::string name;
  std::string schema;   ///< of its arguments: JSON
  bool strict = false;  ///< they must fit it, also where the model calls by itself
  size_t place = 0;     ///< in the request's list of tools
};

/// Null: there is no form of that name.
const CallForm* FindCallForm(std::string_view name);
/// The form that a chat template shows its model; null: none, or one that is not known here.
const CallForm* CallFormOf(std::string_view template_source);
/// All of them.
const std::vector<CallForm>& CallForms();

}  // namespace baton::router
