// A line of the log with named values: text is for people, fields for what reads logs. In JSON (--log-format) they
// stand beside the message, in text they do not. Any thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>

#include "common/log.h"

namespace baton {

struct LogField {
  std::string_view name;  ///< none of time, level, process, message
  std::variant<std::string, int64_t, double> value;
};

/// As LogLine, of a text that is whole.
void LogWithFields(LogLevel level, std::string_view text, std::initializer_list<LogField> fields);

}  // namespace baton
