// Files that a flag names, opened to be read.
#pragma once

#include <fstream>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton {

/// A file, or a pipe, before its first byte. NotFound: "FLAG: cannot read PATH: why"; a folder is none either, whose
/// bytes a stream would throw at, nor is a device such as /dev/zero; /dev/null and a terminal are.
absl::StatusOr<std::ifstream> OpenToRead(const std::string& path, std::string_view flag);

}  // namespace baton
