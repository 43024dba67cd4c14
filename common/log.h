// The log of a process: one line per call, by spdlog. Any thread. Sources include this and not spdlog, whose headers
// cost some four seconds of compilation each.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>

namespace baton {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Lines below `level` are dropped. `name`: debug, info, warning or error, as --log-level takes them.
void SetLogLevel(std::string_view name);

/// How later lines are written. `name`: text, or json, an object a line: time, level, process, message. As --log-format
/// takes them; set it first.
void SetLogFormat(std::string_view name);

/// Stands in brackets before every later line: which process of a cluster speaks, "prefill-0" say. Printable text.
void SetLogName(std::string_view name);

/// Whether lines of `level` are written: for those that cost something to put together.
bool IsLogged(LogLevel level);

/// One line, whatever it says. `format` and `args` as in fmt::format.
void LogLine(LogLevel level, fmt::string_view format, fmt::format_args args);

template <class... Args>
void Log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  LogLine(level, format, fmt::make_format_args(args...));
}
template <class... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kDebug, format, fmt::make_format_args(args...));
}
template <class... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kInfo, format, fmt::make_format_args(args...));
}
template <class... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kWarning, format, fmt::make_format_args(args...));
}
template <class... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kError, format, fmt::make_format_args(args...));
}

}  // namespace baton
