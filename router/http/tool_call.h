// An answer that must call a function: the text that the model is held to, and the call that clients see. Pure.
//
// The model writes {"name":"f","arguments":{...}} without white space before the arguments, which are the function's
// JSON.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/str_cat.h"

namespace baton::router {

/// The answer's text up to the arguments. `name`: letters, digits, - and _ only.
inline std::string ToolCallHead(std::string_view name) { return StrCat(R"({"name":")", name, R"(","arguments":)"); }

/// Takes the call out of one choice's text, piece by piece.
class ToolCallText {
 public:
  /// `names`: of the functions that may be called.
  explicit ToolCallText(std::vector<std::string> names) : names_(std::move(names)) {}

  struct Piece {
    std::string name;       ///< set once, when it is known
    std::string arguments;  ///< more of them
  };
  Piece Append(std::string_view text);
  /// The end of the text. `whole`: the model has ended it; else it was cut, and what is there are arguments.
  std::string Finish(bool whole);

 private:
  const std::vector<std::string> names_;
  bool named_ = false;
  std::string held_;  ///< before the name is known: all; then: a brace that may be the answer's last
};

}  // namespace baton::router
