// TerminalScreen: a terminal that shows one frame after another in place, and gives back what it showed before. One
// thread.
#pragma once

#include <termios.h>

#include <string>
#include <utility>
#include <vector>

namespace baton::cli {

class TerminalScreen {
 public:
  /// Takes the screen: no cursor, no echo, keys come one by one.
  TerminalScreen();
  ~TerminalScreen();
  TerminalScreen(const TerminalScreen&) = delete;
  TerminalScreen& operator=(const TerminalScreen&) = delete;

  void Show(const std::vector<std::string>& lines);
  /// Keys that were pressed since the last call, without waiting.
  std::string Keys();

  /// (columns, rows) as it is now.
  static std::pair<int, int> Size();
  /// Output and input are a terminal.
  static bool There();
  /// The locale of the environment writes UTF-8.
  static bool SpeaksUnicode();

 private:
  termios before_{};
};

}  // namespace baton::cli
