// ProgressLine: how far a start-up is, for people who watch: on a terminal one line that is rewritten, else a line
// every 5 s.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.h"

namespace baton::worker {

/// One thread. The text on a terminal is gone when the line is destroyed.
class ProgressLine {
 public:
  struct Sinks {
    std::function<void(const std::string&)> terminal;  ///< raw characters; empty: there is no terminal
    std::function<void(const std::string&)> line;      ///< a line of the log
  };
  ProgressLine(const Clock& clock, Sinks sinks);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// `fraction` of the phase, 0…1. Cheap enough to be called for every tensor.
  void Show(std::string_view phase, double fraction);

 private:
  const Clock& clock_;
  const Sinks sinks_;
  TimePoint shown_;
  bool on_terminal_ = false;  ///< a line stands there
};

/// Of this process's standard output.
ProgressLine::Sinks StandardProgress();

}  // namespace baton::worker
