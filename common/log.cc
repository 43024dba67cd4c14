#include "common/log.h"

#include <spdlog/spdlog.h>

#include <atomic>
#include <iterator>
#include <memory>

#include "common/foreign_text.h"
#include "common/log_fields.h"
#include "common/log_sink.h"
#include "common/utf8.h"

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

std::atomic<bool> is_json = false;

/// Bytes of a message: in many stand words of peers.
constexpr size_t kMostLine = 16 << 10;

// What stands between the quotes of a JSON string, always valid UTF-8.
std::string JsonText(std::string_view text) {
  std::string valid, held, out;
  AppendUtf8(text, Utf8Repair::kMaximalPart, held, valid);
  FlushUtf8(Utf8Repair::kMaximalPart, held, valid);
  for (const char c : valid) {
    if (c == '"' || c == '\\') out.push_back('\\');
    if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      out.push_back(c);
    }
  }
  return out;
}

std::string MessageJson(std::string_view text) {
  return JsonText(text.size() > kMostLine ? Printable(text, kMostLine) : std::string(text));
}

std::string Payload(std::string_view text) {
  return is_json ? fmt::format("\"{}\"", MessageJson(text)) : Printable(text, kMostLine);
}

constexpr const char* kLogger = "baton";  // in no line: lines have the name of the process

// Once a process: a library that is loaded later and has this file in it, as the plugin of the emulated GPU has, leaves
// the logger that other threads are writing to.
[[maybe_unused]] const bool installed = [] {
  if (spdlog::default_logger_raw()->name() == kLogger) return false;
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(kLogger, std::make_shared<LogSink>(&Payload)));
  return true;
}();

}  // namespace

void SetLogLevel(std::string_view name) { spdlog::set_level(spdlog::level::from_str(std::string(name))); }

void SetLogFormat(std::string_view name) {
  is_json = name == "json";
  if (is_json) SetLogName("");
}

void SetLogName(std::string_view name) {
  std::string escaped;
  for (const char c : is_json ? JsonText(name) : std::string(name)) escaped.append(c == '%' ? "%%" : std::string(1, c));
  if (is_json) {
    spdlog::set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","process":")" + escaped +
                        R"(","message":%v})");
  } else {
    spdlog::set_pattern("[%Y-%m-%d %H:%M:%S.%e] [%^%l%$] [" + escaped + "] %v");
  }
}

bool IsLogged(LogLevel level) { return spdlog::should_log(Of(level)); }

void LogLine(LogLevel level, fmt::string_view format, fmt::format_args args) {
  if (!spdlog::should_log(Of(level))) return;
  LogWithFields(level, fmt::vformat(format, args), {});
}

void LogWithFields(LogLevel level, std::string_view text, std::initializer_list<LogField> fields) {
  if (!spdlog::should_log(Of(level))) return;
  std::string line = Payload(text);
  if (!is_json) return spdlog::log(Of(level), "{}", line);
  for (const LogField& field : fields) {
    fmt::format_to(std::back_inserter(line), ",\"{}\":", field.name);
    if (const auto* words = std::get_if<std::string>(&field.value)) {
      fmt::format_to(std::back_inserter(line), "\"{}\"", MessageJson(*words));
    } else if (const auto* whole = std::get_if<int64_t>(&field.value)) {
      fmt::format_to(std::back_inserter(line), "{}", *whole);
    } else {
      fmt::format_to(std::back_inserter(line), "{:.3f}", std::get<double>(field.value));
    }
  }
  spdlog::log(Of(level), "{}", line);
}

}  // namespace baton
