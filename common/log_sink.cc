#include "common/log_sink.h"

#include <fmt/core.h>
#include <spdlog/details/log_msg.h>
#include <spdlog/details/os.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

#include "common/errno_text.h"
#include "common/lost_log_lines.h"

namespace baton {
namespace {

std::atomic<int64_t> lost_lines = 0;

std::string_view ColorOf(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::debug: return "\033[36m";
    case spdlog::level::info: return "\033[32m";
    case spdlog::level::warn: return "\033[33m\033[1m";
    default: return "\033[31m\033[1m";
  }
}

}  // namespace

int64_t LostLogLines() { return lost_lines; }

LogSink::LogSink(std::string (*payload)(std::string_view text))
    : payload_(payload),
      colors_(spdlog::details::os::in_terminal(stdout) && spdlog::details::os::is_color_terminal()) {}

std::string LogSink::LineOf(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t line;
  formatter_->format(message, line);
  std::string text(line.data(), line.size());
  if (colors_ && message.color_range_end > message.color_range_start) {
    text.insert(message.color_range_end, "\033[m");
    text.insert(message.color_range_start, ColorOf(message.level));
  }
  return text;
}

std::string LogSink::MissingLine() {
  const std::string said = payload_(fmt::format("{} lines of the log are missing here: {}", missing_, why_missing_));
  return LineOf({"", spdlog::level::warn, said});
}

bool LogSink::Write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    text.remove_prefix(static_cast<size_t>(n));
    torn_ = !text.empty();
  }
  return true;
}

void LogSink::Lose(int error) {
  ++lost_lines;
  if (++missing_ > 1) return;
  why_missing_ = ErrnoText(error);
  dprintf(STDERR_FILENO, "baton: cannot write the log to standard output: %s; lines are lost until it can be written\n",
          why_missing_.c_str());
}

void LogSink::sink_it_(const spdlog::details::log_msg& message) {
  std::fflush(stdout);  // what was printed before stands before
  if (missing_ > 0) {
    if (!Write(torn_ ? "\n" + MissingLine() : MissingLine())) return Lose(errno);
    missing_ = 0;
  }
  if (!Write(torn_ ? "\n" + LineOf(message) : LineOf(message))) Lose(errno);
}

}  // namespace baton
