#include "cli/terminal_screen.h"

#include <langinfo.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <cstring>

namespace baton::cli {
namespace {

void Put(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace

TerminalScreen::TerminalScreen() {
  tcgetattr(STDIN_FILENO, &before_);
  termios raw = before_;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  Put("\x1b[?1049h\x1b[?25l");
}

TerminalScreen::~TerminalScreen() {
  Put("\x1b[?25h\x1b[?1049l");
  tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

void TerminalScreen::Show(const std::vector<std::string>& lines) {
  std::string out = "\x1b[H";
  for (size_t i = 0; i < lines.size(); ++i) out += lines[i] + "\x1b[K" + (i + 1 < lines.size() ? "\r\n" : "");
  Put(out + "\x1b[J");
}

std::string TerminalScreen::Keys() {
  std::string keys;
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  char some[64];
  while (poll(&input, 1, 0) > 0) {
    const ssize_t n = read(STDIN_FILENO, some, sizeof some);
    if (n <= 0) return keys + 'q';  // the terminal is gone
    keys.append(some, static_cast<size_t>(n));
  }
  return keys;
}

std::pair<int, int> TerminalScreen::Size() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {100, 40};
  return {size.ws_col, size.ws_row};
}

bool TerminalScreen::There() { return isatty(STDOUT_FILENO) == 1 && isatty(STDIN_FILENO) == 1; }

bool TerminalScreen::SpeaksUnicode() {
  std::setlocale(LC_CTYPE, "");
  return std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

}  // namespace baton::cli
