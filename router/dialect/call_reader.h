// Calls of functions in an answer's text: the text that a model is held to, or writes by itself, and the calls that
// clients see. Pure.
//
// A forced answer is one call, {"name":"f","arguments":{...}}, without white space before the arguments. A model that
// may call or not writes its calls in the form of its family (call_form.h).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/str_cat.h"
#include "router/dialect/call_form.h"

namespace baton::router {

/// The answer's text up to the arguments. `name`: letters, digits, - and _ only.
inline std::string ToolCallHead(std::string_view name) { return StrCat(R"({"name":")", name, R"(","arguments":)"); }

/// Takes the calls out of one choice's text, piece by piece.
class ToolCallReader {
 public:
  /// News of one call.
  struct Call {
    int32_t index = 0;
    std::string name;       ///< of the call's first news only
    std::string arguments;  ///< more of them
    size_t at = 0;          ///< so many bytes of the piece's text stand before the call
  };
  struct Piece {
    std::string text;  ///< that is no call
    std::vector<Call> calls;
  };
  virtual ~ToolCallReader() = default;
  virtual Piece Append(std::string_view text) = 0;
  /// The end of the text. `whole`: the model has ended it; else it was cut.
  virtual Piece Finish(bool whole) = 0;
  /// Behind the end: there is a call, and it is not cut.
  virtual bool HasWholeCall() const = 0;
};

/// Of an answer that is one call of one of these functions. Of a cut answer the rest is arguments, too: they are an
/// object, or the beginning of one.
std::unique_ptr<ToolCallReader> ReadForcedCall(std::vector<std::string> names);
/// Of an answer that may have calls of these functions in this form. A call comes whole; what looks like a call but is
/// none of one of them stays text. `well_formed`: a grammar holds the calls (call_grammar.h); else what a model got
/// wrong is read as well as it can be.
std::unique_ptr<ToolCallReader> ReadFreeCalls(const CallForm& form, std::vector<std::string> names,
                                              bool well_formed = false);

/// An id for a call, unlike every other: it comes back in the conversation's later turns. `form`: null is any.
std::string NewCallId(const CallForm* form);

}  // namespace baton::router
