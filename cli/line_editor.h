// What a person types, line by line: with editing, history and pasted text as one message on a terminal (libedit), as
// it comes from a pipe. One thread.
#pragma once

#include <memory>
#include <string>

#include "cli/interrupts.h"

namespace baton::cli {

struct Input {
  enum Kind {
    kLine,         ///< `text`, without the newline that ended it; UTF-8
    kInterrupted,  ///< Ctrl-C: what was typed is gone
    kEnd,          ///< Ctrl-D, or nothing is left to read
    kTerminated,   ///< SIGTERM
  } kind = kEnd;
  std::string text{};
};

class LineEditor {
 public:
  virtual ~LineEditor() = default;
  virtual Input Read() = 0;
  virtual bool is_terminal() const = 0;
};

/// Reads standard input; `interrupts` must outlive the editor. On a terminal, `prompt` stands before each line.
std::unique_ptr<LineEditor> MakeLineEditor(Interrupts& interrupts, const std::string& prompt);

}  // namespace baton::cli
