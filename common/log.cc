#include "common/log.h"

#include <spdlog/spdlog.h>

namespace baton {
namespace {

spdlog::level::level_enum Of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

void SetLogLevel(std::string_view name) { spdlog::set_level(spdlog::level::from_str(std::string(name))); }

void SetLogName(std::string_view name) {
  std::string escaped;
  for (const char c : name) escaped.append(c == '%' ? "%%" : std::string(1, c));
  spdlog::set_pattern("[%Y-%m-%d %H:%M:%S.%e] [%^%l%$] [" + escaped + "] %v");
}

void LogLine(LogLevel level, fmt::string_view format, fmt::format_args args) {
  if (spdlog::should_log(Of(level))) spdlog::log(Of(level), "{}", fmt::vformat(format, args));
}

}  // namespace baton
