// --log-level of a server process.
#pragma once

#include <string>

#include "spdlog/spdlog.h"

namespace baton::cli {

/// `name` as the configs' Validate() takes it: debug, info, warning or error.
inline void SetLogLevel(const std::string& name) { spdlog::set_level(spdlog::level::from_str(name)); }

}  // namespace baton::cli
