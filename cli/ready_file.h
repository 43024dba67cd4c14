// A file that appears, whole, once a process is ready: shell variables with its addresses.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace baton::cli {

/// Writes NAME='value' lines to `path` by rename; does nothing for an empty path.
absl::Status WriteReadyFile(const std::string& path, const std::vector<std::pair<std::string, std::string>>& values);

/// Whether it could be written: FailedPrecondition, early, where it could not.
absl::Status CheckReadyFile(const std::string& path);

/// The same, and an earlier life's file is gone: whoever waits for the file waits for this process.
absl::Status PrepareReadyFile(const std::string& path);

}  // namespace baton::cli
